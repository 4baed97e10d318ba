# A backend that lives long does not grow: not by calls, not by errors, not by
# tables that come, go and change their names.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main', "idemkit.notify = 'never'", 'max_locks_per_transaction = 256');

plan skip_all => 'unavailable: pg_backend_memory_contexts came with PostgreSQL 14'
  if $node->value('SHOW server_version_num') < 140000;

my $session;

# What a backend holds after some turns of a piece of work, less what it held
# after a hundredth of that.
sub growth
{
	my ($work, $turns, $condition) = @_;
	my $used = 'SELECT sum(used_bytes) FROM pg_backend_memory_contexts' . ($condition // '');

	$session = $node->session;
	$work->($turns / 100);
	$session->query_safe($used);
	my $before = $session->query_safe($used);
	$work->($turns);
	my $after = $session->query_safe($used);
	$session->quit;
	note "from $before to $after bytes";
	return $after - $before;
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
	END LOOP;
END $$};
my $limit = 100_000;    # bytes: less than one a call

cmp_ok(growth(sub { $session->query_safe(sprintf($body, $_[0])) }, 15_000 * $IdemkitNode::long),
	'<', $limit, 'calls of every kind, two hundred thousand');

cmp_ok(growth(sub { $session->query_safe(sprintf($body =~ s/COMMIT;//gr, $_[0])) }, 2_000),
	'<', $limit, 'calls in one transaction');

cmp_ok(growth(
		sub {
			$node->value("TRUNCATE idemkit_records; SELECT count(idemkit_claim('k' || i, lease_ttl_seconds => 0.000001)) FROM generate_series(1, $_[0]) i");
			$session->query('CALL idemkit_sweep(batch_rows => 3, lease_grace_seconds => 0)');
			$session->{stderr} = '';
		}, 10_000),
	'<', $limit, 'three thousand batches of a sweep');

cmp_ok(growth(
		sub {
			$session->query_safe("SELECT format('SELECT state FROM idemkit_claim(%L) \\g /dev/null', i % 10)"
				  . " FROM generate_series(1, $_[0]) i \\g " . $node->basedir . "/calls.sql\n\\i " . $node->basedir . '/calls.sql');
		}, 10_000),
	'<', $limit, 'calls as statements of their own');

cmp_ok(growth(
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
		}, 5_000),
	'<', $limit, 'calls that raise');

# A table is forgotten when it is gone, its plans when it changes its name.  What
# the server's own caches keep of any table that came and went does not count.
cmp_ok(growth(
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
		}, 300, q{ WHERE name <> 'CacheMemoryContext'}),
	'<', $limit, 'tables made, renamed and dropped');

$node->log_is_clean;
done_testing();
