# A backend that lives long does not grow: not by calls, not by errors, not by
# tables that come, go and change their names.
#
# IDEMKIT_SIZE: how many calls one backend makes of all functions.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main', "idemkit.notify = 'never'", 'max_locks_per_transaction = 256');

plan skip_all => 'unavailable: pg_backend_memory_contexts came with PostgreSQL 14'
  if $node->value('SHOW server_version_num') < 140000;

my $limit = 100_000;             # bytes in memory contexts: less than one a call
my $resident_limit = 2_000;    # kilobytes: the allocator keeps what it once had
my $session;

# What a backend holds: bytes used in its memory contexts (those that the condition
# leaves), and kilobytes of memory that are its own, or 0 where there is no /proc.
sub held
{
	my ($condition) = @_;
	my $used = 'SELECT sum(used_bytes) FROM pg_backend_memory_contexts ' . ($condition // '');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_safe($used);    # it takes memory itself, the first time
	my $bytes = $session->query_safe($used);
	my $status = -e "/proc/$pid/status" ? PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") : '';
	return ($bytes, $status =~ /^RssAnon:\s+(\d+) kB$/m ? $1 : 0);
}

# Two tests: of what a backend holds after some turns of a piece of work, against what
# it held after a hundredth of that.  The work is done in parts, each one statement.
sub does_not_grow
{
	my ($name, $work, $turns, %options) = @_;
	my $part = $options{part} // $turns;
	my @held;

	$session = $node->session;
	$session->query_safe('SET client_min_messages = warning');
	for my $share ($turns / 100, $turns)
	{
		for (my $done = 0; $done < $share; $done += $part)
		{
			$work->($share - $done < $part ? $share - $done : $part);
		}
		push @held, [ held($options{condition}) ];
	}
	$session->quit;
	IdemkitNode::report("$name: contexts from $held[0][0] to $held[1][0] bytes, own memory from $held[0][1] to $held[1][1] kB");
	cmp_ok($held[1][0] - $held[0][0], '<', $limit, "memory contexts: $name");
	cmp_ok($held[1][1] - $held[0][1], '<', $resident_limit, "own memory of the process: $name");
	return;
}

# Each call is a transaction.
my $body = q{
DO $$
DECLARE
	key text;
	token text;
	answer text;
	batch text[];
	tokens text[];
	removed bigint;
BEGIN
	FOR turn IN 1..%d LOOP
		key := 'key ' || turn %% 1000;
		token := (SELECT our_claim_token FROM idemkit_claim(key, repeat('f', 64), lease_ttl_seconds => 60)); COMMIT;
		PERFORM idemkit_claim(key); COMMIT;
		PERFORM idemkit_claim(key, 'another'); COMMIT;
		PERFORM idemkit_renew(key, token, 60); COMMIT;
		PERFORM idemkit_guard(key, token); COMMIT;
		PERFORM idemkit_complete(key, token, 200, '{"h": "v"}', repeat('b', 500)::bytea, 600); COMMIT;
		answer := (SELECT response_headers FROM idemkit_claim(key)); COMMIT;
		answer := (SELECT state FROM idemkit_get(key)); COMMIT;
		PERFORM idemkit_release(key, token); COMMIT;
		PERFORM idemkit_vacuum(0); COMMIT;
		batch := ARRAY['a' || key, 'b' || key, 'a' || key];
		tokens := (SELECT array_agg(coalesce(our_claim_token, 'none')) FROM idemkit_claim_many(batch)); COMMIT;
		PERFORM idemkit_subscribe(batch); COMMIT;
		PERFORM idemkit_wait('a' || key, 0); COMMIT;
		PERFORM idemkit_complete_many(batch, tokens, expires_after_seconds => 0); COMMIT;
		PERFORM idemkit_effective_key('tenant', key); COMMIT;
		PERFORM idemkit_verify_schema(); COMMIT;
		IF turn %% 100 = 1 THEN PERFORM idemkit_stats(); COMMIT; END IF;
		PERFORM idemkit_create_table('more'); COMMIT;
		CALL idemkit_sweep(removed); COMMIT;
	END LOOP;
END $$};
my $calls_a_turn = () = $body =~ s/IF turn.*//r =~ /\bidemkit_\w+\(/g;
my $calls = IdemkitNode::size(100_000, 10_000_000);

does_not_grow("$calls calls of every kind", sub { $session->query_safe(sprintf($body, $_[0])) },
	$calls / $calls_a_turn, part => 1_000);

# A sweep commits.
does_not_grow('30000 calls in one transaction',
	sub { $session->query_safe(sprintf($body =~ s/CALL.*//r =~ s/COMMIT;//gr, $_[0])) }, 2_000);

does_not_grow('three thousand batches of a sweep',
	sub {
		$node->value("TRUNCATE idemkit_records; SELECT count(idemkit_claim('k' || i, lease_ttl_seconds => 0.000001)) FROM generate_series(1, $_[0]) i");
		$session->query('CALL idemkit_sweep(batch_rows => 3, lease_grace_seconds => 0)');
		$session->{stderr} = '';
	},
	10_000);

does_not_grow('10000 calls as statements of their own',
	sub {
		$session->query_safe("SELECT format('SELECT state FROM idemkit_claim(%L) \\g /dev/null', i % 10)"
			  . " FROM generate_series(1, $_[0]) i \\g " . $node->basedir . "/calls.sql\n\\i " . $node->basedir . '/calls.sql');
	},
	10_000);

does_not_grow('25000 calls that raise',
	sub {
		$session->query_safe(qq{
DO \$\$
BEGIN
	FOR turn IN 1..$_[0] LOOP
		BEGIN PERFORM idemkit_guard('none', 'none'); EXCEPTION WHEN SQLSTATE 'IK001' THEN NULL; END;
		BEGIN PERFORM idemkit_claim(''); EXCEPTION WHEN SQLSTATE '22023' THEN NULL; END;
		BEGIN PERFORM idemkit_claim(NULL); EXCEPTION WHEN SQLSTATE '22004' THEN NULL; END;
		BEGIN PERFORM idemkit_claim('k', records => 'pg_class'); EXCEPTION WHEN SQLSTATE '55000' THEN NULL; END;
		BEGIN PERFORM idemkit_claim('k', records => 1); EXCEPTION WHEN SQLSTATE '42P01' THEN NULL; END;
		COMMIT;
	END LOOP;
END \$\$});
	},
	5_000);

# A table is forgotten when it is gone, its plans when it changes its name.  What
# the server's own caches keep of any table that came and went does not count.
does_not_grow('300 tables made, renamed and dropped',
	sub {
		$session->query_safe(qq{
DO \$\$
BEGIN
	FOR turn IN 1..$_[0] LOOP
		PERFORM idemkit_create_table('named'); COMMIT;
		PERFORM idemkit_claim('k', records => 'named'), idemkit_vacuum(records => 'named'); COMMIT;
		ALTER TABLE named RENAME TO renamed; COMMIT;
		PERFORM idemkit_claim('k', records => 'renamed'), idemkit_claim('k2', records => 'renamed'); COMMIT;
		ALTER TABLE renamed RENAME TO named;
		PERFORM idemkit_claim('k3', records => 'named');
		ROLLBACK;
		PERFORM idemkit_claim('k4', records => 'renamed'); COMMIT;
		DROP TABLE renamed; COMMIT;
	END LOOP;
END \$\$});
	},
	300,
	condition => q{WHERE name <> 'CacheMemoryContext'});

$node->log_is_clean;
done_testing();
