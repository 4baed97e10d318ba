# The server is killed with SIGKILL under load.  After the restart everything
# that a client was told still holds: results are there as they were stored,
# claims are held by those who won them, and no key has been won twice.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use PostgreSQL::Test::Utils ();
use Test::More;

my $clients = 8;
my $crashes = 3 * $IdemkitNode::long;
my $keys    = 20_000;                       # more than a client gets through

my $node = IdemkitNode->launch('main', 'checkpoint_timeout = 30s');
my %told;    # key => { claim => [tokens], complete => [tokens] }

# What a client does, as a script for psql.  All clients go through the same
# keys, so each is raced for.  Of the keys it wins a client completes one third,
# completes one third in one transaction with the claim, and just holds the rest.
# It writes down what it was told by the server.
sub client_script
{
	my ($crash) = @_;
	my $script = '';

	foreach my $turn (1 .. $keys)
	{
		my $key   = "crash$crash-$turn";
		my $claim = "SELECT our_claim_token IS NOT NULL AS won, our_claim_token AS token"
		  . " FROM idemkit_claim('$key', 'f', lease_ttl_seconds => 3600) \\gset\n";
		my $complete = "SELECT idemkit_complete('$key', :'token', 200, '{\"turn\": $turn}',"
		  . " convert_to('body of $key by ' || :'token', 'UTF8')) AS done \\gset\n";

		if ($turn % 3 == 0)
		{
			$script .= "BEGIN;\n$claim\\if :won\n${complete}\\endif\nCOMMIT;\n"
			  . "\\if :won\n\\echo claim $key :token\n\\if :done\n\\echo complete $key :token\n\\endif\n\\endif\n";
		}
		else
		{
			$script .= "$claim\\if :won\n\\echo claim $key :token\n";
			$script .= "${complete}\\if :done\n\\echo complete $key :token\n\\endif\n" if $turn % 3 == 1;
			$script .= "\\endif\n";
		}
	}
	return $script;
}

# The processes of the server, the postmaster first.
sub server_processes
{
	my ($postmaster) = split(/\n/, PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid'));
	my @children = grep { /\d/ } split(/\s+/, `ps -o pid= --ppid $postmaster`);

	die "ps finds no process below the postmaster ($postmaster)" if !@children;
	return ($postmaster, @children);
}

# Kills the server while clients are at work, and waits until all of it is gone.
# $everything: every process at once, as when the machine goes down; otherwise
# the postmaster alone, whose children then end by themselves.
sub crash_under_load
{
	my ($crash, $everything) = @_;
	my (@runs, @outputs);

	foreach my $client (0 .. $clients - 1)
	{
		my $path = $node->script(client_script($crash));

		$outputs[$client] = '';
		push @runs, IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $path ],
			'>', \$outputs[$client], '2>', '/dev/null',
			IPC::Run::timeout($IdemkitNode::patience));
	}

	# Somewhere in the middle of the work.
	my $progress = 300 + int(rand(700));
	$node->poll_query_until('postgres',
		"SELECT count(*) > $progress FROM idemkit_records WHERE effective_key LIKE 'crash$crash-%'")
	  or die 'the clients make no progress';

	my @processes = server_processes();
$node->kill9;
	kill 'KILL', @processes[ 1 .. $#processes ] if $everything;
	$node->wait_until('the server is gone', sub { !grep { kill 0, $_ } @processes });
	$_->finish foreach @runs;

	foreach my $line (map { split(/\n/, $_) } @outputs)
	{
		my ($verb, $key, $token) = split(/ /, $line);

		push @{ $told{$key}{$verb} }, $token;
	}
	return;
}

# What the table does not bear out of what clients were told, one line each.
sub broken_promises
{
	my @broken;
	my %row = map {
		my ($key, @columns) = split(/\|/, $_);
		($key => \@columns)
	  } split(/\n/, $node->value(q{
		SELECT effective_key, state, claim_token, coalesce(response_status::text, ''),
			coalesce(response_headers::text, ''), coalesce(convert_from(response_body, 'UTF8'), ''),
			lease_until > clock_timestamp(), attempts
		FROM idemkit_records}));

	foreach my $key (sort keys %told)
	{
		my @claims = @{ $told{$key}{claim} };
		my ($turn) = $key =~ /-(\d+)$/;

		push @broken, "$key was won by " . @claims . ' clients' if @claims > 1;
		if (!exists $row{$key})
		{
			push @broken, "$key was won, and is gone";
			next;
		}
		my ($state, $token, $status, $headers, $body, $live, $attempts) = @{ $row{$key} };
		push @broken, "$key was won with another token"     if $token ne $claims[0];
		push @broken, "$key has no live lease or retention" if $live ne 't';
		push @broken, "$key was taken over"                 if $attempts != 1;
		push @broken, "$key was completed, and is $state"
		  if $told{$key}{complete} && $state ne 'COMPLETED';
		push @broken, "$key has another result than was stored"
		  if $state eq 'COMPLETED'
		  && ($status ne '200' || $headers ne "{\"turn\": $turn}" || $body ne "body of $key by $token");
	}
	return @broken;
}

srand();
foreach my $crash (1 .. $crashes)
{
	crash_under_load($crash, $crash % 2 == 0);
$node->start;

	my @told = grep { /^crash$crash-/ } keys %told;
	my @done = grep { exists $told{$_}{complete} } @told;
	cmp_ok(scalar @done, '>', 100, "crash $crash: clients had been told of " . @done . ' completions');
	my @broken = broken_promises();
	is(scalar @broken, 0, "crash $crash: nothing that a client was told was lost")
	  or diag(join("\n", @broken[ 0 .. ($#broken > 9 ? 9 : $#broken) ]));

	is($node->value('SELECT idemkit_verify_schema()'), '', "crash $crash: the table is sound");
	is($node->value(
			qq{SELECT count(*), count(*) FILTER (WHERE c.our_claim_token IS NOT NULL),
				count(*) FILTER (WHERE c.claim_token <> r.claim_token OR c.state <> r.state)
			FROM (SELECT * FROM idemkit_records) r, LATERAL idemkit_claim(r.effective_key, 'f') c}
		) =~ s/^\d+\|//r,
		'0|0',
		"crash $crash: no key in the table can be won again");
}

# A claim whose owner died with the server is taken over when its lease ends.
my $held = $node->value("SELECT effective_key FROM idemkit_records WHERE state = 'CLAIMED' LIMIT 1");
isnt($held, '', 'a claim outlived its owner');
my $old = $node->value("SELECT claim_token FROM idemkit_records WHERE effective_key = '$held'");
$node->value("UPDATE idemkit_records SET lease_until = clock_timestamp() WHERE effective_key = '$held'");
is($node->value("SELECT result, attempts FROM idemkit_claim('$held')"),
	'lease_reclaimed|2', 'it is taken over when its lease has ended');
is($node->value("SELECT idemkit_complete('$held', '$old')"), 'f', 'its old token is worth nothing');

done_testing();
