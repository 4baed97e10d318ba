# Row-level security on a records table is respected: a tenant neither reads nor
# changes the rows of another, and a key that another holds out of sight ends in
# an error instead of a loop.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main');

# By a column of its own: the same key may be asked for by two tenants.
# By a prefix of the key: a tenant cannot even ask for the key of another.
$node->value(q{
	CREATE ROLE blue LOGIN;
	CREATE ROLE red LOGIN;
	SELECT idemkit_create_table('by_column');
	ALTER TABLE by_column ADD COLUMN tenant text NOT NULL DEFAULT current_user;
	CREATE POLICY tenant ON by_column USING (tenant = current_user);
	ALTER TABLE by_column ENABLE ROW LEVEL SECURITY;
	SELECT idemkit_create_table('by_prefix');
	CREATE POLICY tenant ON by_prefix USING (starts_with(effective_key, current_user || ':'));
	ALTER TABLE by_prefix ENABLE ROW LEVEL SECURITY;
	GRANT SELECT, INSERT, UPDATE, DELETE ON by_column, by_prefix TO blue, red;
});

my $token = $node->value("SELECT our_claim_token FROM idemkit_claim('shared', records => 'by_column')", 'blue');
like($token, qr/^[0-9a-f]{32}$/, 'a tenant claims a key');
is($node->value("SELECT result FROM idemkit_claim('shared', records => 'by_column')", 'blue'),
	'already_claimed', 'and sees its own claim');

# The other tenant: bounded, and nothing changed, even with the right token.
my $before = $node->value('SELECT b FROM by_column b');
is($node->sqlstate("SET statement_timeout = '60s'; SELECT idemkit_claim('shared', records => 'by_column')", 'red'),
	'55000', 'a key held out of sight ends in an error');
my (undef, undef, $stderr) = $node->psql('postgres', "SELECT idemkit_claim('shared', records => 'by_column')",
	extra_params => [ '-U', 'red' ]);
like($stderr, qr/HINT: .*row-level security/, 'whose hint names row-level security');
is($node->value("SELECT count(*) FROM idemkit_get('shared', 'by_column')", 'red'), '0', 'get finds nothing');
is($node->value("SELECT idemkit_complete('shared', '$token', records => 'by_column')", 'red'),
	'f', 'complete changes nothing');
is($node->value("SELECT idemkit_release('shared', '$token', records => 'by_column')", 'red'),
	'f', 'release changes nothing');
is($node->value("SELECT idemkit_release('shared', '$token', true, 'by_column')", 'red'),
	'f', 'release keeping attempts changes nothing');
is($node->value("SELECT idemkit_renew('shared', '$token', 99, 'by_column')", 'red'), 'f', 'renew changes nothing');
is($node->sqlstate("SELECT idemkit_guard('shared', '$token', 'by_column')", 'red'), 'IK001', 'guard is refused');
is($node->value('SELECT b FROM by_column b'), $before, 'the row is as it was');

# Each with keys of its own.
is($node->value("SELECT result FROM idemkit_claim('mine', records => 'by_column')", 'red'),
	'new_claimed', 'the other tenant claims keys of its own');
is($node->value("SELECT idemkit_complete('shared', '$token', 200, records => 'by_column')", 'blue'),
	't', 'the owner completes its claim');
is($node->value("SELECT result, response_status FROM idemkit_claim('shared', records => 'by_column')", 'blue'),
	'already_completed|200', 'and has its result replayed');

# Vacuum removes what the caller sees.
$node->value("UPDATE by_column SET lease_until = clock_timestamp() - interval '1 hour'");
is($node->value("SELECT idemkit_vacuum(records => 'by_column')", 'red'), '1', 'vacuum removes the own row');
is($node->value('SELECT tenant FROM by_column'), 'blue', 'and leaves that of the other tenant');

# One session that changes roles, with plans it has saved.
my $session = $node->session;
foreach my $round (1, 2)
{
	$session->query_safe('SET ROLE blue');
	is($session->query_safe("SELECT result FROM idemkit_claim('blue:$round', records => 'by_prefix')"),
		'new_claimed', "round $round: a key of the own prefix");
	is($node->session_sqlstate($session, "SELECT idemkit_claim('red:$round', records => 'by_prefix')"),
		'42501', "round $round: a key of another's prefix");
	$session->query_safe('SET ROLE red');
	is($session->query_safe("SELECT count(*) FROM idemkit_get('blue:$round', 'by_prefix')"),
		'0', "round $round: the same session as the other tenant does not see it");
	is($session->query_safe("SELECT result FROM idemkit_claim('red:$round', records => 'by_prefix')"),
		'new_claimed', "round $round: and claims a key of its own prefix");
	$session->query_safe('RESET ROLE');
	is($session->query_safe("SELECT count(*) FROM idemkit_get('blue:$round', 'by_prefix')"),
		'1', "round $round: the owner of the table sees all");
}
$session->quit;

# Policies that come and go while a session has plans and knows the table.
$node->value(q{
	SELECT idemkit_create_table('late');
	GRANT SELECT, INSERT, UPDATE, DELETE ON late TO red;
	SELECT idemkit_claim('blue:late', records => 'late')});
$session = $node->session(role => 'red');
is($session->query_safe("SELECT result FROM idemkit_claim('blue:late', records => 'late')"),
	'already_claimed', 'without row-level security all rows are seen');
$node->value(q{
	CREATE POLICY tenant ON late USING (starts_with(effective_key, current_user || ':'));
	ALTER TABLE late ENABLE ROW LEVEL SECURITY});
is($session->query_safe("SELECT count(*) FROM idemkit_get('blue:late', 'late')"),
	'0', 'row-level security enabled meanwhile hides them');
is($node->session_sqlstate($session, "SELECT idemkit_claim('blue:late', records => 'late')"),
	'42501', 'and refuses the key');
$node->value('ALTER TABLE late DISABLE ROW LEVEL SECURITY');
is($session->query_safe("SELECT count(*) FROM idemkit_get('blue:late', 'late')"),
	'1', 'disabled again it does not');
$session->quit;

# The owner of a table is held to its policies where they are forced.
$node->value(q{
	GRANT CREATE ON SCHEMA public TO blue;
	ALTER TABLE late OWNER TO blue;
	ALTER TABLE late ENABLE ROW LEVEL SECURITY;
	INSERT INTO late SELECT 'red:late', 'CLAIMED', '', 1, 'token', now(), now()});
is($node->value("SELECT count(*) FROM idemkit_get('red:late', 'late')", 'blue'), '1', 'the owner sees all rows');
$node->value('ALTER TABLE late FORCE ROW LEVEL SECURITY');
is($node->value("SELECT count(*) FROM idemkit_get('red:late', 'late')", 'blue'), '0', 'unless forced');

# A role told to fail rather than to see less gets that error.
is($node->sqlstate("SET row_security = off; SELECT idemkit_get('blue:1', 'by_prefix')", 'red'),
	'42501', 'row_security = off is respected');

$node->log_is_clean;
done_testing();
