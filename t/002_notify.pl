# A completion or release is announced to other sessions when it commits, and
# only then; idemkit.notify says which are.
use strict;
use warnings;
use utf8;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node     = IdemkitNode->launch('main');
my $listener = $node->session;
my $worker   = $node->session;
my $calls    = 0;

$listener->query_safe('LISTEN idemkit_completions');

# What the listener has been sent since the last call.  Notifications arrive in
# commit order, so after one sent now there is nothing left to wait for.
sub heard
{
	my $call = ++$calls;
	my $text = '';

	$node->value("NOTIFY idemkit_completions, 'heard $call'");
	$node->wait_until("notification $call",
		sub { $text .= $listener->query('SELECT') . "\n"; return $text =~ /"heard $call"/; });
	return [ grep { !/^heard \d+$/ }
		  $text =~ /notification "idemkit_completions" with payload "(.*?)" received/g ];
}

# Claims a key in the worker's session and returns the token.
sub claim
{
	my ($key) = @_;

	return $worker->query_safe("SELECT our_claim_token FROM idemkit_claim('$key')");
}

my %settle = (
	complete => sub { "SELECT idemkit_complete('$_[0]', '$_[1]')" },
	release  => sub { "SELECT idemkit_release('$_[0]', '$_[1]')" },
	'release keeping attempts' =>
	  sub { "SELECT idemkit_release('$_[0]', '$_[1]', keep_attempts => true)" });

is_deeply(heard(), [], 'a listener hears nothing at first');

foreach my $verb (sort keys %settle)
{
	my $key   = $verb =~ s/ /-/gr;
	my $token = claim($key);
	my $sql   = $settle{$verb}->($key, $token);

	is_deeply(heard(), [], "$verb: a claim is not announced");

	is($worker->query_safe("BEGIN; $sql"), 't', "$verb: in a transaction");
	is_deeply(heard(), [], "$verb: nothing before the commit");
	$worker->query_safe('ROLLBACK');
	is_deeply(heard(), [], "$verb: nothing after a rollback");

	$worker->query_safe('BEGIN');
	$worker->query_safe('SAVEPOINT s');
	is($worker->query_safe($sql), 't', "$verb: below a savepoint");
	$worker->query_safe('ROLLBACK TO s');
	$worker->query_safe('COMMIT');
	is_deeply(heard(), [], "$verb: nothing when the savepoint is rolled back");

	is($worker->query_safe($settle{$verb}->($key, 'not the token')),
		'f', "$verb: with a wrong token");
	is_deeply(heard(), [], "$verb: nothing when it returned false");

	foreach my $setting ('never', 'awaited')
	{
		$worker->query_safe("SET idemkit.notify = $setting");
		is($worker->query_safe($sql), 't', "$verb: with idemkit.notify = $setting");
		is_deeply(heard(), [], "$verb: not announced to nobody with idemkit.notify = $setting");
		$worker->query_safe("RESET idemkit.notify; DELETE FROM idemkit_records");
		$sql = $settle{$verb}->($key, claim($key));
	}

	is($worker->query_safe("BEGIN; $sql"), 't', "$verb: with idemkit.notify = always");
	$worker->query_safe('COMMIT');
	is_deeply(heard(), [$key], "$verb: announced at the commit");
}

# What else moves a claim along is no end of it.
my $token = claim('renewed');
is($worker->query_safe("SELECT idemkit_renew('renewed', '$token')"), 't', 'renew');
is_deeply(heard(), [], 'renew is not announced');
$worker->query_safe("UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'");
is($worker->query_safe("SELECT result FROM idemkit_claim('renewed')"), 'lease_reclaimed', 'reclaim');
is_deeply(heard(), [], 'reclaim is not announced');
$worker->query_safe(q{UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'});
is($worker->query_safe('SELECT idemkit_vacuum()'), '2', 'vacuum');
is_deeply(heard(), [], 'vacuum is not announced');

# The mark decides under "awaited", and a session's setting is its own.
$worker->query_safe('SET idemkit.notify = awaited');
($token, my $unmarked) = (claim('marked'), claim('unmarked'));
$worker->query_safe("UPDATE idemkit_records SET awaited = true WHERE effective_key = 'marked'");
$worker->query_safe("SELECT idemkit_complete('marked', '$token'), idemkit_complete('unmarked', '$unmarked')");
is_deeply(heard(), ['marked'], 'with idemkit.notify = awaited the marked claim is announced');

$worker->query_safe('SET idemkit.notify = never');
$token = claim('marked-never');
$worker->query_safe("UPDATE idemkit_records SET awaited = true WHERE effective_key = 'marked-never'");
$worker->query_safe("SELECT idemkit_complete('marked-never', '$token')");
is_deeply(heard(), [], 'with idemkit.notify = never not even a marked claim is announced');
$worker->query_safe('RESET idemkit.notify');

# The payload is the key, whatever is in it; one for each key.
my $long = "\x{20ac}" x 341;
utf8::encode($long);
my $quoted = 'a "quoted" key';
foreach my $key ($long, $quoted)
{
	$token = claim($key);
	is($worker->query_safe("SELECT idemkit_complete('$key', '$token')"), 't', 'complete');
	is_deeply(heard(), [$key], 'the payload is the whole key: ' . length($key) . ' bytes');
}

my %tokens = map { ($_ => claim($_)) } 'first', 'second', 'third';
$worker->query_safe('BEGIN');
$worker->query_safe("SELECT idemkit_complete('$_', '$tokens{$_}')") foreach 'first', 'second';
$worker->query_safe("SELECT idemkit_release('third', '$tokens{third}')");
$worker->query_safe('COMMIT');
is_deeply(heard(), [ 'first', 'second', 'third' ], 'one transaction announces each key it ends');

# The setting of a database or role counts like that of a session.
$node->value('ALTER DATABASE postgres SET idemkit.notify = never');
$token = $node->value("SELECT our_claim_token FROM idemkit_claim('by-database')");
is($node->value("SELECT idemkit_complete('by-database', '$token')"), 't', 'complete');
is_deeply(heard(), [], 'idemkit.notify set for the database');
is($node->sqlstate("SELECT idemkit_get('k'); SET idemkit.notify = sometimes"), '22023', 'a setting that is none is refused');
# Servers before 15 take any name behind the prefix.
is($node->sqlstate("SELECT idemkit_get('k'); SET idemkit.notifi = never"),
	IdemkitNode::major_version() >= 15 ? '42602' : '00000',
	'a misspelt setting is refused once the library is loaded');

$listener->quit;
$worker->quit;
$node->log_is_clean;
done_testing();
