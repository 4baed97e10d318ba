# Behind pgbouncer in transaction mode: all but LISTEN works, with more clients than
# server connections, with statements prepared on the server where pgbouncer knows how
# to carry them (max_prepared_statements, from 1.21), and without. (The waiters of the C
# library behind a pooler: client/test/pgbouncer.t.)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Drivers;
use IdemkitNode;
use PgBouncer;
use Test::More;

plan skip_all => 'unavailable: there is no pgbouncer' unless defined PgBouncer::program();

my $carries = PgBouncer::version() >= 121;
my $node    = IdemkitNode->launch('main');
my $bouncer = PgBouncer->start($node,
	{ postgres => 'pool_mode=transaction pool_size=3', session => 'pool_mode=session pool_size=40' },
	$carries ? 'max_prepared_statements = 100' : ());
my @many    = qw(race wait transactions batches sweep settings);
my $pooled  = '-h ' . $bouncer->host . ' -p ' . $bouncer->port;

note 'pgbouncer ' . PgBouncer::version() . ($carries ? '' : ': it carries no prepared statements');
$node->value('CREATE TABLE pooler_work (key text PRIMARY KEY)');

# Every check of the drivers, and those for many clients.
sub check_all
{
	my ($how, $database, $prepare) = @_;

	Drivers::lead_to($bouncer->host, $bouncer->port, $database);
	Drivers::check_psycopg($how, PREPARE => $prepare ? 0 : 'none', POOLER => 1);
	Drivers::check_asyncpg($how, PREPARE => $prepare ? 'all' : 'none');
	Drivers::check_pg($how, PREPARE => $prepare ? 'all' : 'none');
	Drivers::check('pooler_checks.py', ['psycopg'], \@many, $how, PREPARE => $prepare ? 0 : 'none');
	return;
}

check_all('transaction mode', 'postgres', 0);
check_all('transaction mode, prepared', 'postgres', 1) if $carries;
check_all('session mode, prepared', 'session', 1) if !$carries;

# The same from psql's relatives: by the simple, the extended and, where that is carried,
# the prepared protocol. (A thread each: pgbench waits for the preparation of one client
# without a look at the others, whose open transactions have the connections.)
foreach my $protocol ('simple', 'extended', $carries ? 'prepared' : ())
{
	$node->value('TRUNCATE idemkit_records, pooler_work');
	$node->bench("pgbench, $protocol protocol", "$pooled -M $protocol -c 12 -j 12 -t 60", q{
\set key random(1, 200)
BEGIN;
WITH c AS MATERIALIZED (SELECT * FROM idemkit_claim('key ' || :key) WHERE our_claim_token IS NOT NULL),
	w AS (INSERT INTO pooler_work SELECT effective_key FROM c)
SELECT idemkit_complete(effective_key, our_claim_token) FROM c;
COMMIT;
});
	is($node->value('SELECT (SELECT count(*) FROM pooler_work) - count(*) FROM idemkit_records'), 0, "$protocol: a row for each key");
	is($node->value(q{SELECT count(*) FROM idemkit_records WHERE state <> 'COMPLETED'}), 0, "$protocol: all completed");
}

cmp_ok($node->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}),
	'<=', $carries ? 3 : 3 + 40, 'no more server connections than the pool has');
$bouncer->stop;
$node->log_is_clean;
done_testing();
