# The records on a Citus cluster of a coordinator and two workers, set up with the
# statements of docs/citus.md: the verbs on keys of both workers, called on all
# three servers; batches, housekeeping, waiting and transactions over many
# shards; a worker killed and back, and a shard that moves.
#
# IDEMKIT_SIZE=N is the number of claims of each session of the race.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;

my $library = qx(pg_config --pkglibdir) =~ s/\n//r . '/citus.so';
plan skip_all => 'unavailable: Citus is not installed for this server' unless -e $library;

our $claims = IdemkitNode::size(100, 2_000);

#
# Three servers, and the statements of the document
#
my ($coordinator, @workers) = map { start_server($_) } qw(coordinator worker1 worker2);
my @servers = ($coordinator, @workers);

sub start_server
{
	my ($name) = @_;
	my $node = IdemkitNode->prepare($name, "shared_preload_libraries = 'citus'", 'wal_level = logical',
		'max_prepared_transactions = 100', 'citus.shard_count = 8', "citus.node_conninfo = 'sslmode=disable'",
		'citus.enable_statistics_collection = off');

	$node->append_conf('postgresql.conf', "citus.local_hostname = '" . $node->host . "'");
	$node->start;
	$node->value('CREATE EXTENSION citus');
	return $node;
}

# "host, port" of a server as arguments of Citus's functions.
sub address
{
	my ($node) = @_;

	return sprintf("'%s', %d", $node->host, $node->port);
}

$coordinator->value(join(';', 'SELECT citus_set_coordinator_host(' . address($coordinator) . ')',
		map { 'SELECT citus_add_node(' . address($_) . ')' } @workers));
note($coordinator->value('SELECT citus_version()'));

# The blocks of SQL of the document, each to be run once.
my $document = PostgreSQL::Test::Utils::slurp_file("$FindBin::RealBin/../docs/citus.md");
my @blocks   = $document =~ /^```sql [^\n]*\n(.*?)^```$/msg;

# The block with these words in it.
sub block
{
	my ($words) = @_;
	my @found = grep { /\Q$words\E/ } @blocks;

	die "docs/citus.md has " . @found . " blocks with: $words" if @found != 1;
	@blocks = grep { $_ ne $found[0] } @blocks;
	return $found[0];
}

# A session that used the table before it was distributed.
$coordinator->value(block('CREATE EXTENSION'));
my $old_session = $coordinator->session;
is($old_session->query_safe(q{SELECT result FROM idemkit_claim('early', lease_ttl_seconds => 3600)}),
	'new_claimed', 'a claim before the table is distributed');
$old_session->query_safe(q{SELECT * FROM idemkit_claim_many(ARRAY['early', 'earlier'], lease_ttl_seconds => 3600)});
$coordinator->value(block('create_distributed_table(\'idemkit_records\''));
is($coordinator->value(block('create_distributed_function')) =~ tr/\n//, 6, 'seven functions work on one key');
is($old_session->query_safe(q{SELECT result FROM idemkit_claim('early')}), 'already_claimed',
	'its record went to a shard, and the session that made it follows');
is($old_session->query_safe(q{SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['earlier', 'early', 'late'])}),
	'already_claimed already_claimed new_claimed', 'as do its batches');

my $where = block('get_shard_id_for_distribution_column') =~ s/;\s*\z//r;

# $count keys, made of $prefix and a number, whose shards are on a worker.
sub keys_on
{
	my ($worker, $prefix, $count) = @_;
	my $of_key = $where =~ s/'order-1'/'$prefix' || i/r;

	return split(/\n/, $coordinator->value("SELECT '$prefix' || i FROM generate_series(1, 1000) i,"
			. " LATERAL ($of_key) k WHERE nodeport = " . $worker->port . " ORDER BY i LIMIT $count"));
}

# Nothing of a key is left but what the test says: how many records there are.
sub records
{
	my (@keys) = @_;

	return $coordinator->value('SELECT count(*) FROM idemkit_records WHERE effective_key = ANY ('
		  . text_array(@keys) . ')');
}

sub text_array { return 'ARRAY[' . join(', ', map { "'$_'" } @_) . ']::text[]' }

# The token that a claim wins.
sub win
{
	my ($server, $key, $options) = @_;

	return $server->value("SELECT our_claim_token FROM idemkit_claim('$key'" . ($options // ', lease_ttl_seconds => 3600') . ')');
}

#
# One key
#

# A life of a key with everything that can happen in it, every step checked.
my $life = q{
SELECT result, our_claim_token = claim_token AS ours, attempts, our_claim_token AS token, fence AS fence
	FROM idemkit_claim(:'key', 'print', lease_ttl_seconds => 0.000001) \gset a_
SELECT result, our_claim_token FROM idemkit_claim(:'key', 'print', reclaim => false) \gset b_
SELECT result, attempts, our_claim_token AS token, fence > :a_fence AS later
	FROM idemkit_claim(:'key', 'print', lease_ttl_seconds => 3600) \gset c_
SELECT idemkit_complete(:'key', :'a_token') AS complete \gset lost_
SELECT idemkit_renew(:'key', :'a_token') AS renew \gset lost_
SELECT idemkit_release(:'key', :'a_token') AS release \gset lost_
SELECT idemkit_renew(:'key', :'c_token', 600) AS renew \gset
SELECT idemkit_guard(:'key', :'c_token') AS guard \gset
SELECT idemkit_release(:'key', :'c_token', true) AS release \gset
SELECT result, attempts, our_claim_token AS token FROM idemkit_claim(:'key', 'print', lease_ttl_seconds => 60) \gset d_
SELECT result, fingerprint_matches AS same FROM idemkit_claim(:'key', 'another') \gset e_
SELECT idemkit_complete(:'key', :'d_token', 201, '{"a": [1, null]}', :'body'::bytea, 600) AS complete \gset
SELECT result, response_status, response_headers, response_body FROM idemkit_claim(:'key', 'print') \gset f_
SELECT state, response_body IS NULL AS none, ceil(remaining_seconds) AS remaining FROM idemkit_get(:'key') \gset g_
SELECT outcome FROM idemkit_wait(:'key') \gset h_
\echo :a_result :a_ours :a_attempts, :b_result, :c_result :c_attempts :c_later, :lost_complete :lost_renew :lost_release
\echo :renew :release, :d_result :d_attempts, :e_result :e_same, :complete
\echo :f_result :f_response_status :f_response_headers :f_response_body, :g_state :g_none :g_remaining, :h_outcome
};
my $lived = 'new_claimed t 1, lease_lapsed, lease_reclaimed 2 t, f f f
t t, lease_reclaimed 3, already_claimed f, t
already_completed 201 {"a": [1, null]} %s, COMPLETED f 600, completed';

foreach my $server (@servers)
{
	foreach my $worker (@workers)
	{
		my ($key, $empty) = keys_on($worker, $server->name . ' key ', 2);
		my $name = 'a key of ' . $worker->name . ', called on ' . $server->name;

		is($server->value("\\set key '$key'\n\\set body '\\\\x00ff'\n$life"), sprintf($lived, '\x00ff'), $name);
		is($server->value("\\set key '$empty'\n\\set body ''\n$life"), sprintf($lived, '\x'), "$name, with an empty body");
	}
}

# A call runs on the worker that has the key, wherever it is made: in a transaction
# that is left open, the session that Citus has there for it can be seen.
foreach my $server (@servers)
{
	foreach my $worker (@workers)
	{
		my ($key) = keys_on($worker, 'run ' . $server->name, 1);
		my $session = $server->session;

		$session->query_safe("BEGIN; SELECT 1 FROM idemkit_claim('$key')");
		is(join(' ', map { $_->value(q{SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'
				AND application_name LIKE 'citus_internal%' AND query ~ 'idemkit_claim\('}) } @workers),
			join(' ', map { $_ == $worker && $_ != $server ? 1 : 0 } @workers),
			'a call on ' . $server->name . ' runs on ' . $worker->name);
		$session->query_safe('ROLLBACK');
		$session->quit;
		is(records($key), '0', 'and its rollback leaves nothing');
	}
}

# As a part of something larger, where the statement runs.
my @both = map { keys_on($_, 'part ', 10) } @workers;
is($coordinator->value(q{SELECT count(*) FILTER (WHERE (idemkit_claim(k)).result = 'new_claimed') FROM unnest(}
		. text_array(@both) . ') k'), '20', 'a call for each row of a query');
is($coordinator->value(qq{
		CREATE FUNCTION claimed(key text) RETURNS text LANGUAGE plpgsql AS \$\$
			BEGIN RETURN (SELECT result FROM idemkit_claim(key)); END \$\$;
		SELECT claimed('$both[0]'), claimed('$both[19]'), claimed('part new')}),
	'already_claimed|already_claimed|new_claimed', 'a call in a function');

# Prepared statements, also in the protocol, and an ordinary role.
$coordinator->value('CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records TO app');
$coordinator->bench('prepared statements of an ordinary role', "-M prepared -U app -c 4 -j 2 -t $claims", q{
\set key random(1, 50)
SELECT coalesce(our_claim_token, '') AS token FROM idemkit_claim('prepared ' || :key, lease_ttl_seconds => 0.001) \gset
SELECT idemkit_complete('prepared ' || :key, :token, expires_after_seconds => 0.001);
SELECT idemkit_get('prepared ' || :key);
});
is($coordinator->value(q{SELECT result FROM idemkit_claim_many(ARRAY['app 1', 'app 2'])
		UNION SELECT ((idemkit_stats()).live_claims > 1) || ' ' || idemkit_vacuum(max_rows => 0)}, 'app'),
	"new_claimed\ntrue 0", 'batches, statistics and vacuum of an ordinary role');

# Another table.
like($coordinator->value(block('idemkit_create_table')), qr/^new_claimed$/m, 'a table of its own');
is($coordinator->value(q{SELECT count(*) FROM idemkit_get('job-1');
		SELECT count(*) FROM idemkit_claim_many(ARRAY['job-1', 'job-2'], records => 'job_records')}),
	"0\n2", 'has records of its own');
foreach my $table ('idemkit_records', 'job_records')
{
	is($coordinator->value(qq{SELECT idemkit_verify_schema('$table');
			SELECT count(*), bool_and(success) FROM run_command_on_shards('$table', \$\$SELECT idemkit_verify_schema('%s')\$\$)}),
		"\n8|t", "$table and each of its shards are complete records tables");
}
$coordinator->value(q{SELECT idemkit_create_table('copied'); SELECT create_reference_table('copied');
	SELECT * FROM idemkit_claim_many(ARRAY['a', 'b'], records => 'copied')});
is($coordinator->sqlstate("SELECT idemkit_vacuum(records => 'copied')"), '0A000', 'replicas are not vacuumed');
is($coordinator->sqlstate("SELECT idemkit_stats('copied')"), '0A000', 'nor counted');

#
# Races
#

# Sessions on all three servers claim the same keys, one by one and in batches; who
# wins a key writes it down.
sub race
{
	my ($name, $script, @on) = @_;
	my (%out, %run);

	foreach my $server (@on)
	{
		$server->value(q{SET citus.enable_ddl_propagation = off; DROP TABLE IF EXISTS wins; CREATE TABLE wins (key text)});
		$run{ $server->port } = IPC::Run::start(
			[
				'pgbench', '-n', '-c', 3, '-j', 1, '-t', $claims, '-f', $server->script($script), $server->connstr('postgres')
			],
			'>', '/dev/null', '2>', \$out{ $server->port }, IPC::Run::timeout($IdemkitNode::patience * 5));
	}
	foreach my $server (@on)
	{
		$run{ $server->port }->finish;
		is($run{ $server->port }->result(0) . $out{ $server->port }, '0', "$name: every call on " . $server->name . ' succeeds');
	}
	my @wins = map { split(/\n/, $_->value('SELECT key FROM wins')) } @on;
	my %keys = map { $_ => 1 } @wins;
	is(@wins, keys %keys, "$name: no key is won twice");
	is($coordinator->value("SELECT count(*) FROM idemkit_records WHERE effective_key LIKE '$name %'"),
		@wins, "$name: and each is won by somebody");
	IdemkitNode::report("$name: " . @on * 3 * $claims . ' calls on ' . @on . ' servers, ' . @wins . ' keys won');
	return;
}

race('single', qq{
\\set key random(1, $claims)
SELECT (our_claim_token IS NOT NULL)::int AS won FROM idemkit_claim('single ' || :key, lease_ttl_seconds => 3600) \\gset
\\if :won
INSERT INTO wins VALUES ('single ' || :key);
\\endif
}, @servers);

# Batches by one server: see the document.
{
	local $claims = int($claims / 10);
	race('batch', qq{
\\set first random(1, $claims)
INSERT INTO wins SELECT effective_key FROM idemkit_claim_many(ARRAY(SELECT 'batch ' || (:first + i) FROM generate_series(5, 1, -1) i),
	lease_ttl_seconds => 3600) WHERE our_claim_token IS NOT NULL;
}, $coordinator);
}

# A batch of new keys, one in the hands of another session, which ends its claim in
# every way there is; in one of them the batch has to give everything back and begin
# again. $end is done by the other, and the batch then says $expected of the key.
{
	my ($a, $held, $z) = (keys_on($workers[0], 'a ', 1), keys_on($workers[1], 'held ', 1), keys_on($workers[1], 'z ', 1));
	my ($other, $batch) = ($coordinator->session, $coordinator->session);

	foreach my $case (
		[ 'COMMIT', 'already_claimed' ],
		[ 'ROLLBACK', 'new_claimed' ],
		[ "SELECT idemkit_complete('$held', :'token'); COMMIT", 'already_completed' ],
		[ "SELECT idemkit_complete('$held', :'token', expires_after_seconds => 0); COMMIT", 'new_claimed' ])
	{
		my ($end, $expected) = @$case;

		$coordinator->value('TRUNCATE idemkit_records');
		$other->query_safe("BEGIN; SELECT our_claim_token AS token FROM idemkit_claim('$held') \\gset");
		$coordinator->begin_statement($batch, 'SELECT string_agg(result, \' \') FROM idemkit_claim_many('
			  . text_array($z, $held, $a) . ', lease_ttl_seconds => 600)');
		$coordinator->wait_until('the batch is blocked', sub {
				$workers[1]->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'}) ne '0' });
		$other->query_safe($end);
		like($batch->query(''), qr/^new_claimed $expected new_claimed$/m, "a batch beside a claim that ends with: $end");
		is(records($z, $held, $a), '3', 'and there is one record of each key');
	}
	$_->quit foreach $other, $batch;
}

# Many keys in many shards, some twice, in any order; all planner settings.
my @many = map { keys_on($_, 'many ', 20) } reverse @workers;
my $many = text_array(@many, $many[0], $many[39]);
foreach my $mode (qw(auto force_generic_plan force_custom_plan))
{
	$coordinator->value('TRUNCATE idemkit_records');
	is($coordinator->value(qq{
			SET plan_cache_mode = $mode;
			CREATE TEMP TABLE c AS SELECT * FROM idemkit_claim_many($many, lease_ttl_seconds => 0.000001) WITH ORDINALITY;
			SELECT count(*) FILTER (WHERE result = 'new_claimed'), count(*), array_agg(effective_key ORDER BY ordinality) = $many FROM c;
			CREATE TEMP TABLE d AS SELECT * FROM idemkit_claim_many($many, lease_ttl_seconds => 3600);
			SELECT count(*) FILTER (WHERE d.result = 'lease_reclaimed'), count(*) FILTER (WHERE d.fence > c.fence), max(d.attempts)
				FROM d JOIN c USING (effective_key) WHERE c.our_claim_token IS NOT NULL AND d.our_claim_token IS NOT NULL;
			CREATE TEMP TABLE e AS SELECT array_agg(effective_key ORDER BY random()) AS keys FROM d WHERE our_claim_token IS NOT NULL;
			SELECT count(*) FROM idemkit_subscribe($many);
			SELECT count(*), count(*) FILTER (WHERE done) FROM
				idemkit_complete_many((SELECT keys FROM e), (SELECT array_agg(CASE effective_key WHEN '$many[7]' THEN 'wrong' ELSE claim_token END
					ORDER BY array_position(keys, effective_key)) FROM e, d WHERE our_claim_token IS NOT NULL),
					(SELECT array_agg(200) FROM unnest((SELECT keys FROM e)) k),
					(SELECT array_agg('{"a": 1}'::jsonb) FROM unnest((SELECT keys FROM e)) k),
					(SELECT array_agg(convert_to(k, 'UTF8')) FROM unnest((SELECT keys FROM e)) k)) done;
			SELECT result, count(*), count(*) FILTER (WHERE response_body = convert_to(effective_key, 'UTF8')) FROM idemkit_claim_many($many)
				GROUP BY 1 ORDER BY 1}),
		"40|42|t\n40|40|2\n40\n40|39\nalready_claimed|1|0\nalready_completed|41|41",
		"batches of 42 keys, 40 of them different, under plan_cache_mode $mode");
}

#
# Housekeeping
#

# Expired and live records of both kinds, $count of each, in all shards, and some
# that another session has locked.
sub fill
{
	my ($count) = @_;

	$coordinator->value(qq{
		TRUNCATE idemkit_records;
		INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until, completed_at)
		SELECT word || ' ' || state || ' ' || i, state, '', 1, i, now() - interval '2 d',
			CASE word WHEN 'over' THEN now() - interval '1 d' ELSE now() + interval '1 d' END,
			CASE state WHEN 'COMPLETED' THEN now() - interval '2 d' END
		FROM generate_series(1, $count) i, unnest(ARRAY['over', 'live']) word, unnest(ARRAY['CLAIMED', 'COMPLETED']) state});
	return;
}

fill(200);
{
	my @locked = map { $_->session } @servers;

	$locked[$_]->query_safe("BEGIN; SELECT idemkit_claim('over COMPLETED " . ($_ + 1) . q{')}) foreach 0 .. $#locked;
	is($coordinator->value(q{SET lock_timeout = '5s'; SELECT idemkit_vacuum(max_rows => 3)}), 3 * 8, 'max_rows is for each shard');
	is($coordinator->value(q{SET lock_timeout = '5s'; SELECT idemkit_vacuum()}), 400 - 3 * 8 - 3, 'a vacuum passes over what others have locked');
	$_->query_safe('ROLLBACK') foreach @locked;
	$_->quit foreach @locked;
}
is($workers[0]->value('SELECT idemkit_vacuum()'), '3', 'and takes it when it can, called on a worker');
is($coordinator->value(q{SELECT live_claims, lapsed_claims, live_completions, expired_completions, oldest_live_claim < now(),
		oldest_lapsed_claim IS NULL, highest_attempts, table_bytes > 0, index_bytes > 0, sampled_fraction FROM idemkit_stats()}),
	'200|0|200|0|t|t|1|t|t|1', 'statistics of all shards');
is($coordinator->value('BEGIN; SELECT idemkit_vacuum(3600); ROLLBACK; SELECT (idemkit_stats()).live_completions'), "200\n0",
	'a vacuum by age, which stays done');
fill(200);
is($coordinator->value('SET client_min_messages = warning; CALL idemkit_sweep(batch_rows => 7)'), '400', 'a sweep goes over all shards in batches');
is($coordinator->sqlstate('BEGIN; CALL idemkit_sweep(); COMMIT'), '25001', 'and not in a transaction');
is($workers[1]->value('CALL idemkit_sweep()'), '0', 'nothing is left for one on a worker');
is($coordinator->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'over %'}), '0', 'what was over is gone');
like($coordinator->value(block('CALL idemkit_sweep()')), qr/^0\n0\n200\|200\|\d+$/, 'the statements of the document');
is(join(' ', map { (split(/\|/))[1] } split(/\n/, $coordinator->value(block('SELECT shardid, success, result')))),
	join(' ', ('t') x 8), 'statistics of each shard');

# A session whose first claims came while the shard was small searches its index
# when it has grown: on the worker, and for a coordinator.
{
	my ($key) = keys_on($workers[0], 'plan ', 1);
	my $scans = sub {
		return $workers[0]->value("SELECT pg_stat_get_numscans(shard_name('idemkit_records',"
			  . " get_shard_id_for_distribution_column('idemkit_records', '$key'))::regclass)");
	};
	my $calls = qq{SELECT result FROM idemkit_claim('$key'); SELECT idemkit_complete('$key', 'wrong');
		SELECT idemkit_renew('$key', 'wrong'); SELECT idemkit_release('$key', 'wrong'); SELECT idemkit_get('$key')};
	my $session = $workers[0]->session;

	$coordinator->value(q{TRUNCATE idemkit_records;
		SELECT run_command_on_shards('idemkit_records', 'VACUUM ANALYZE %s')});
	$session->query_safe($calls);
	fill(1000);
	$session->query_safe('SELECT pg_stat_force_next_flush()');
	my $before = $scans->();
	$session->query_safe("$calls; SELECT pg_stat_force_next_flush()");
	is($scans->(), $before, 'plans made for a small shard are good for a large one');
	$session->quit;
}

#
# Waiting
#
$coordinator->value('TRUNCATE idemkit_records');
my ($near, $far) = map { (keys_on($_, 'wait ', 1))[0] } @workers;
{
	my ($waiter, $owner) = ($coordinator->session, $workers[0]->session);
	my $waits = sub {
		my ($key, $end, $expected) = @_;

		$owner->query_safe("SELECT our_claim_token AS token FROM idemkit_claim('$key', lease_ttl_seconds => 3600) \\gset");
		$coordinator->begin_statement($waiter, "SELECT outcome FROM idemkit_wait('$key', 60)");
		$coordinator->wait_until('it waits', sub {
				$workers[1]->value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'Extension' AND query ~ 'idemkit_wait'") ne '0' });
		$owner->query_safe($end);
		is($waiter->query(''), $expected, "a wait on the coordinator, ended by $end");
	};

	$waits->($far, "SELECT idemkit_release('$far', :'token')", 'absent');
	$waits->($far, "SELECT idemkit_renew('$far', :'token', 0.000001)", 'lapsed');
	$waits->($far, "SELECT idemkit_complete('$far', :'token')", 'completed');
	is($coordinator->value("SELECT outcome FROM idemkit_wait('" . (keys_on($workers[0], 'none ', 1))[0] . "')"), 'absent', 'and one that is not there');
	$_->quit foreach $waiter, $owner;
}

# What is heard where: the keys announced to each server while $do is done.
sub heard
{
	my ($do) = @_;
	my @sessions = map { $_->session } @servers;
	my @heard;

	$_->query_safe('LISTEN idemkit_completions') foreach @sessions;
	$do->();
	foreach my $i (0 .. $#servers)
	{
		my $out = '';

		# In the order of commits: what comes after this was never sent.
		$servers[$i]->value(q{NOTIFY idemkit_completions, 'the end'});
		$servers[$i]->wait_until('the end', sub { ($out .= $sessions[$i]->query_safe('SELECT 1')) =~ /the end/ });
		push @heard, join(',', sort grep { $_ ne 'the end' } $out =~ /payload "([^"]*)"/g);
		$sessions[$i]->quit;
	}
	return join(' | ', @heard);
}

$coordinator->value('TRUNCATE idemkit_records');
is(heard(sub {
		foreach my $server (@servers)
		{
			$server->value("SELECT idemkit_complete('$_', '" . win($server, $_) . "')") foreach map { keys_on($_, $server->name, 1) } @workers;
		}
		}),
	join(' | ', '', map { my $worker = $_; join(',', sort map { keys_on($worker, $_->name, 1) } @servers) } @workers),
	'a completion is heard on the worker that has the key, wherever it is called');
is(heard(sub {
		$coordinator->value("SELECT idemkit_complete_many(" . text_array($near, $far) . ", ARRAY(SELECT our_claim_token FROM idemkit_claim_many("
			  . text_array($near, $far) . ")))");
		}), join(',', sort $near, $far) . ' |  | ', 'a batch of them on the coordinator');

# Only those that somebody waits for.
$coordinator->value(block("idemkit.notify = 'awaited'"));
{
	my @keys  = map { "awaited $_" } 1 .. 8;
	my $heard = heard(sub {
			my @tokens = map { win($coordinator, $_) } @keys;

			$workers[0]->value("SELECT idemkit_subscribe(ARRAY['awaited 3', 'awaited 5', 'awaited none'])");
			$coordinator->value("SELECT idemkit_complete('$keys[$_]', '$tokens[$_]')") foreach 0 .. 7;
		});

	is(join(' ', sort($heard =~ /awaited \d/g)), 'awaited 3 awaited 5', 'with idemkit.notify = awaited, those that were subscribed to');
}
foreach my $server (@servers)
{
	$server->value('ALTER DATABASE postgres RESET idemkit.notify');
}

# The command, and with it the client library: once on the coordinator, then its
# result is replayed by any server.
{
	my @out = map {
		local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($_->host, $_->port, 'postgres');
		PostgreSQL::Test::Utils::run_command([ 'idemkit', 'run', '--key', 'command', '--', 'sh', '-c', 'echo ran as $$' ])
	} @servers;

	like($out[0], qr/^ran as \d+$/, 'a command is run');
	is("$out[2] $out[4]", "$out[0] $out[0]", 'once, and replayed to the other servers');
}

#
# Transactions
#

# How a transaction ends, and in how many phases.
sub outcome
{
	my ($sql) = @_;
	my ($status, $out, $err) = $coordinator->psql('postgres',
		"SET client_min_messages = log; SET citus.log_remote_commands = on; BEGIN; $sql; COMMIT",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my ($sqlstate) = $err =~ /ERROR: +(\w{5})/;

	return $sqlstate // ($err =~ /PREPARE TRANSACTION/ ? 'two phases' : 'one phase');
}

$coordinator->value(block('CREATE TABLE orders'));
is($coordinator->value(q{SELECT result, response_status FROM idemkit_claim('order-2');
		SELECT amount FROM orders WHERE order_key = 'order-2'}), "already_completed|201\n49.90", 'work, claim and completion in a transaction');

# A transaction that works on a key and writes an order of another key; $around is
# what stands behind the call that completes the key, if anything does.
sub work
{
	my ($key, $order, $silent, $around) = @_;

	return ($silent ? q{SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL idemkit.notify = 'never';} : '')
	  . "SELECT our_claim_token AS token FROM idemkit_claim('$key') \\gset\n"
	  . "SELECT idemkit_guard('$key', :'token'); INSERT INTO orders VALUES ('$order', 1);"
	  . "SELECT idemkit_complete('$key', :'token', 201)" . ($around // '');
}

sub stored
{
	my ($key, $order) = @_;

	return $coordinator->value("SELECT count(*) FROM idemkit_records WHERE effective_key = '$key' AND state = 'COMPLETED'") . '|'
	  . $coordinator->value("SELECT count(*) FROM orders WHERE order_key = '$order'");
}

my @near = keys_on($workers[0], 'order ', 8);
my @far  = keys_on($workers[1], 'order ', 8);
is(outcome(work($near[0], $near[0])), 'one phase', 'on one worker, it is committed by that');
is(outcome(work($far[0], $far[0])), 'one phase', 'on the other too');
is(stored($_, $_), '1|1', 'all of it') foreach $near[0], $far[0];
is(outcome(work($near[1], $near[1]) . '; SELECT 1/0'), '22012', 'rolled back');
is(stored($near[1], $near[1]), '0|0', 'nothing is left');
is(outcome(work($near[2], $far[2])), '0A000', 'on two workers, notifications stand in the way of two phases');
is(stored($near[2], $far[2]), '0|0', 'and nothing is left');
is(outcome(work($near[3], $far[3], 1)), 'two phases', 'without them it is committed in two');
is(stored($near[3], $far[3]), '1|1', 'all of it');
is(heard(sub {
		is(outcome(work($near[4], $far[4], 0, '::text')), 'two phases', 'so it is if the completion is called on the coordinator');
		}), "$near[4] |  | ", 'where it is heard then');
is(stored($near[4], $far[4]), '1|1', 'all of it');
unlike($coordinator->value(block("'order-3/'")), qr/f/, 'the statements of the document');
is(stored('order-3', 'order-3/10'), '1|1', 'commit on both workers');

# A claim that is held by a transaction is waited for; the time to wait must be set
# where the call runs.
{
	my $session = $coordinator->session;

	$session->query_safe("BEGIN; SELECT 1 FROM idemkit_claim('$far[5]')");
	is($coordinator->sqlstate(qq{BEGIN; SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL lock_timeout = '50ms';
			SELECT idemkit_claim('$far[5]')}), '55P03', 'a claim waits for a transaction, no longer than lock_timeout');
	$session->query_safe('COMMIT');
	$session->quit;
}

#
# A shard that moves, and a worker that fails
#
sub move
{
	my ($key, $from, $to, $mode) = @_;

	$coordinator->value("SELECT citus_move_shard_placement(get_shard_id_for_distribution_column('idemkit_records', '$key'), "
		  . address($from) . ', ' . address($to) . ", '$mode')");
	return;
}

{
	my @sessions = map { $_->session } @servers;
	my $answers = sub {
		return join(' ', map { $_->query_safe("SELECT result FROM idemkit_claim('$near[0]')") } @sessions);
	};

	is($answers->(), 'already_completed already_completed already_completed', 'before its shard moves');
	move($near[0], @workers, 'block_writes');
	is($answers->(), 'already_completed already_completed already_completed', 'after it, in the same sessions');
	move($near[0], reverse(@workers), 'auto');
	is($answers->(), 'already_completed already_completed already_completed', 'and after it has moved back, by logical replication');
	$_->quit foreach @sessions;
}

$_->log_is_clean foreach @servers;
my $session = $coordinator->session;
my $open    = $coordinator->session;
my $sqlstate = sub { return $coordinator->session_sqlstate($session, $_[0]) };

$session->query_safe("SELECT result FROM idemkit_claim('$_')") foreach $near[0], $far[0];
$open->query_safe('BEGIN;' . work($near[6], $far[6], 1));
$coordinator->value(q{INSERT INTO idemkit_records SELECT 'expired ' || i, 'CLAIMED', '', 1, i, now(), now() - interval '1 d' FROM generate_series(1, 100) i});
$workers[1]->stop('immediate');
is($sqlstate->("SELECT idemkit_claim('$far[7]')"), '08006', 'with a worker down, a claim of a key of it fails');
is($session->query_safe("SELECT result FROM idemkit_claim('$near[0]')"), 'already_completed', 'others go on, in the same session');
is($sqlstate->('SELECT idemkit_claim_many(' . text_array($near[7], $far[7]) . ')'), '08006', 'a batch fails');
is($session->query_safe("SELECT count(*) FROM idemkit_get('$near[7]')"), '0', 'and claims nothing');
is($sqlstate->('SELECT idemkit_vacuum()'), '38000', 'so does a vacuum, after it has done the rest');
is($sqlstate->('CALL idemkit_sweep()'), '38000', 'a sweep');
is($sqlstate->('SELECT idemkit_stats()'), '38000', 'and statistics');
isnt($coordinator->session_sqlstate($open, 'COMMIT'), '00000', 'a transaction that was open on both workers fails');
$workers[1]->start;
is($session->query_safe("SELECT result FROM idemkit_claim('$far[0]')"), 'already_completed', 'when it is back its records are there, for the same session');
$coordinator->value('SELECT recover_prepared_transactions()');
is(join(' ', map { $_->value('SELECT count(*) FROM pg_prepared_xacts') } @servers), '0 0 0', 'no transaction is left prepared');
is(stored($near[6], $far[6]), '0|0', 'nothing of the failed one is left');
is($session->query_safe("SELECT result FROM idemkit_claim('$near[6]')"), 'new_claimed', 'its key can be claimed');
my $left = $session->query_safe(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'expired %'});
cmp_ok($left, '<', 100, "the vacuum left $left of 100 on the worker that was down");
is($session->query_safe(q{SELECT idemkit_vacuum()}), $left, 'which it removes now');
$_->quit foreach $session, $open, $old_session;
$_->log_is_clean foreach @workers;

# Citus has no SQLSTATE of its own for this, nor for a COMMIT that lost a worker.
is($coordinator->sqlstate("SELECT idemkit_release(effective_key, claim_token) FROM idemkit_records WHERE effective_key = '$near[6]'"),
	'XX000', 'a call from inside the shards is refused');

$coordinator->value('CALL citus_cleanup_orphaned_resources()');    # of the moves
$coordinator->value(block('DROP EXTENSION'));
is($coordinator->value(q{SELECT result FROM run_command_on_all_nodes($$SELECT count(*) FROM pg_class WHERE relname LIKE 'idemkit%'$$)}),
	"0\n0\n0", 'nothing is left of the extension on any server');
is(join("\n", @blocks), '', 'every statement of the document was run');

done_testing();
