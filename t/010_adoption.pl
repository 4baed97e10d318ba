# A table of the Python package is adopted while its programs go on using it:
# no row is touched, no statement of theirs fails.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;

my $node = IdemkitNode->launch('main', 'deadlock_timeout = 100ms');

# The layout that package creates, here under another name.
sub package_table
{
	my ($name) = @_;

	return qq{
		CREATE TABLE $name (
			effective_key text PRIMARY KEY,
			state text NOT NULL CHECK (state IN ('CLAIMED', 'COMPLETED')),
			fingerprint text NOT NULL,
			fingerprint_version integer NOT NULL,
			claim_token text NOT NULL,
			claimed_at timestamptz NOT NULL,
			lease_until timestamptz NOT NULL,
			completed_at timestamptz,
			response_status integer,
			response_headers jsonb,
			response_body bytea,
			schema_version integer NOT NULL DEFAULT 1
		);
		CREATE INDEX ${name}_lease_until_idx ON $name (lease_until) WHERE state = 'CLAIMED';
		CREATE INDEX ${name}_completed_at_idx ON $name (completed_at) WHERE state = 'COMPLETED';
	};
}

my $fill = q{
	INSERT INTO %s (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
		lease_until, completed_at, response_status, response_headers, response_body)
	SELECT 'old-' || i, CASE WHEN done THEN 'COMPLETED' ELSE 'CLAIMED' END, md5(i::text), 1,
		md5('token' || i), now(), now() + interval '1 day', CASE WHEN done THEN now() END,
		CASE WHEN done THEN 200 END, CASE WHEN done THEN '{"n": 1}'::jsonb END,
		CASE WHEN done THEN sha256(i::text::bytea) END
	FROM (SELECT i, i % 3 <> 0 AS done FROM generate_series(1, 5000) i) s;
};
my $columns = 'effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,'
  . ' lease_until, completed_at, response_status, response_headers, response_body, schema_version';

$node->value(package_table('shared') . sprintf($fill, 'shared'));
is($node->sqlstate("SELECT idemkit_claim('old-1', records => 'shared')"),
	'55000', 'before it is adopted the table is refused');
like(($node->psql('postgres', "SELECT idemkit_verify_schema('shared')"))[2],
	qr/HINT: /, 'and verifying it gives a hint');

# Programs of the package at work on it: a cycle of claim, complete, read, and
# now and then a release.  They name the first eleven columns or read all.
my $program = q{
\set key random(1, 200)
\set cycle :cycle + 1
INSERT INTO shared (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until)
	VALUES ('new-' || :client_id || '-' || :cycle, 'CLAIMED', 'f', 1, md5(random()::text), now(), now() + '60000 milliseconds'::interval)
	ON CONFLICT (effective_key) DO NOTHING RETURNING *;
UPDATE shared SET state = 'COMPLETED', completed_at = now(), lease_until = now() + '60000 milliseconds'::interval,
	response_status = 201, response_headers = '{}', response_body = 'done'
	WHERE effective_key = 'new-' || :client_id || '-' || :cycle AND state = 'CLAIMED' RETURNING effective_key;
SELECT * FROM shared WHERE effective_key = 'old-' || :key;
INSERT INTO shared (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until,
		completed_at, response_status, response_headers, response_body)
	VALUES ('all-' || :client_id || '-' || :cycle, 'COMPLETED', 'f', 1, 't', now(), now() + '1 h'::interval, now(), 200, NULL, NULL);
DELETE FROM shared WHERE effective_key = 'all-' || :client_id || '-' || :cycle AND :cycle % 10 <> 0;
};
my ($out, $err) = ('', '');
my $load = IPC::Run::start(
	[
		'pgbench', '-n', '-c', '6', '-j', '1', '-t', 1500 * $IdemkitNode::long, '-D', 'cycle=0',
		'-f', $node->script($program), $node->connstr('postgres')
	],
	'>', \$out, '2>', \$err, IPC::Run::timeout($IdemkitNode::patience));
$node->poll_query_until('postgres', "SELECT count(*) > 200 FROM shared WHERE effective_key LIKE 'new-%'")
  or die 'the load makes no progress';

my $file = $node->value("SELECT pg_relation_filenode('shared')");
my $rows = $node->value("SELECT $columns FROM shared WHERE effective_key LIKE 'old-%' ORDER BY 1");
is($node->value("SELECT idemkit_create_table('shared')"), 'shared', 'the table is adopted under load');
my $done = $node->value("SELECT count(*) FROM shared WHERE effective_key LIKE 'new-%'");
$node->poll_query_until('postgres', "SELECT count(*) > $done + 200 FROM shared WHERE effective_key LIKE 'new-%'")
  or die 'the load makes no progress after the adoption';
is($node->value("SELECT idemkit_create_table('shared')"), 'shared', 'and again: nothing happens');
$load->finish;
is($load->result(0) . $err, '0', 'no statement of the programs failed')
  or diag($err);
like($out, qr/number of transactions actually processed: (\d+)\/\1/, 'they did all their work');
is($node->value('SELECT count(*), count(*) FILTER (WHERE NOT awaited AND attempts = 1 AND schema_version = 1) FROM shared'),
	join('|', (5000 + 6 * 1650 * $IdemkitNode::long) x 2), 'every row they wrote is there, with the defaults of the new columns');
is($node->value("SELECT $columns FROM shared WHERE effective_key LIKE 'old-%' ORDER BY 1"),
	$rows, 'every row that was there before is unchanged');
is($node->value("SELECT pg_relation_filenode('shared')"), $file, 'the table was not rewritten');
is($node->sqlstate("SELECT idemkit_verify_schema('shared')"), '00000', 'it is a complete records table');
is($node->value(q{SELECT string_agg(pg_get_indexdef(indexrelid), E'\n' ORDER BY indisprimary DESC, 1) FROM pg_index
		WHERE indrelid = 'shared'::regclass}) =~ s/CREATE (UNIQUE )?INDEX |public\.|USING btree //gr,
	"shared_pkey ON shared (effective_key)\nshared_lease_until_idx ON shared (lease_until)",
	'one full index on lease_until has replaced the two partial ones');
is($node->value(q{SELECT attcollation::regcollation FROM pg_attribute
		WHERE attrelid = 'shared'::regclass AND attname = 'effective_key'}),
	'"C"', 'the key is ordered by bytes');

# What the package stored is understood.
is($node->value("SELECT result, response_status, encode(response_body, 'hex') = encode(sha256('1'), 'hex'), attempts"
		. " FROM idemkit_claim('old-1', records => 'shared')"),
	'already_completed|200|t|1', 'a result it stored is replayed');
is($node->value("SELECT result, claim_token = md5('token3') FROM idemkit_claim('old-3', records => 'shared')"),
	'already_claimed|t', 'a claim it holds is respected');
is($node->value("SELECT idemkit_complete('old-3', md5('token3'), 204, records => 'shared')"),
	't', 'its claim can be completed with its token');
$node->value("UPDATE shared SET lease_until = now() - interval '1 s' WHERE effective_key = 'old-6'");
is($node->value("SELECT result, attempts FROM idemkit_claim('old-6', records => 'shared')"),
	'lease_reclaimed|2', 'its lapsed claim is taken over');
is($node->value("UPDATE shared SET lease_until = now() - interval '1 h' WHERE effective_key ~ '-[0-9]*7\$';"
		. " SELECT idemkit_vacuum(records => 'shared') > 500"), 't', 'its expired rows are vacuumed');

# A table in which the columns have been added by hand already, one of them.
$node->value(package_table('half') . sprintf($fill, 'half') . 'ALTER TABLE half ADD COLUMN attempts integer NOT NULL DEFAULT 1');
is($node->value("SELECT idemkit_create_table('half'); SELECT idemkit_verify_schema('half')"),
	"half\n", 'a half adopted table is completed');

# Adoption in a transaction that is rolled back leaves the table as it was.
$node->value(package_table('undecided'));
my $before = $node->value(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'undecided'::regclass});
$node->value("BEGIN; SELECT idemkit_create_table('undecided'); ROLLBACK");
is($node->value(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'undecided'::regclass}), $before, 'adoption can be rolled back');

# What is something else is not adopted, and left alone.
foreach my $case (
	[ 'a table of other columns', 'CREATE TABLE other (id int PRIMARY KEY)' ],
	[ 'a view', 'CREATE VIEW other AS SELECT * FROM shared' ],
	[ 'no primary key', package_table('other') . 'ALTER TABLE other DROP CONSTRAINT other_pkey' ],
	[ 'a column of another type', package_table('other') . 'ALTER TABLE other ALTER response_headers TYPE text' ])
{
	$node->value($case->[1]);
	is($node->sqlstate("SELECT idemkit_create_table('other')"), '55000', "not adopted: $case->[0]");
	$node->value($case->[1] =~ /VIEW/ ? 'DROP VIEW other' : 'DROP TABLE other');
}

# Several programs adopt it at once.
$node->value(package_table('raced') . sprintf($fill, 'raced'));
$node->bench('programs that adopt a table at the same time', '-c 8 -j 2 -t 5',
	q{SELECT idemkit_create_table('raced'); SELECT idemkit_claim('k-' || :client_id, records => 'raced');});
is($node->sqlstate("SELECT idemkit_verify_schema('raced')"), '00000', 'it is complete');

$node->log_is_clean;
done_testing();
