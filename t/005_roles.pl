# The caller's rights on the table are what counts: with them an ordinary role
# can do everything, without them nothing.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main');

$node->value(q{
	CREATE ROLE app LOGIN;          -- what the documentation says to grant
	CREATE ROLE stranger LOGIN;     -- nothing
	CREATE ROLE reader LOGIN;       -- SELECT
	CREATE ROLE starter LOGIN;      -- SELECT, INSERT
	CREATE ROLE finisher LOGIN;     -- SELECT, UPDATE
	CREATE ROLE undeleter LOGIN;    -- SELECT, INSERT, UPDATE
	GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records TO app;
	GRANT SELECT ON idemkit_records TO reader;
	GRANT SELECT, INSERT ON idemkit_records TO starter;
	GRANT SELECT, UPDATE ON idemkit_records TO finisher;
	GRANT SELECT, INSERT, UPDATE ON idemkit_records TO undeleter;
	REVOKE CREATE ON SCHEMA public FROM PUBLIC;
});

# The keys that the statements below are about, in the state they need.
my $setup = q{
	TRUNCATE idemkit_records;
	SELECT idemkit_claim(k, lease_ttl_seconds => 3600) FROM unnest(ARRAY['held', 'done', 'lapsed', 'expired']) k;
	UPDATE idemkit_records SET claim_token = 'token';
	SELECT idemkit_complete(k, 'token') FROM unnest(ARRAY['done', 'expired']) k;
	UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
		WHERE effective_key IN ('lapsed', 'expired');
};

# Statement, and the roles besides app that may do it.
my @statements = (
	[ "SELECT idemkit_claim('new')",                            'starter', 'undeleter' ],
	[ "SELECT idemkit_claim('held')",                           'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim('done')",                           'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim('lapsed')",                         'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim('lapsed', reclaim => false)",       'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim('expired')",                        'finisher', 'undeleter' ],
	[ "SELECT idemkit_complete('held', 'token')",               'finisher', 'undeleter' ],
	[ "SELECT idemkit_complete('held', 'wrong')",               'finisher', 'undeleter' ],
	[ "SELECT idemkit_release('held', 'token')" ],
	[ "SELECT idemkit_release('held', 'token', true)",          'finisher', 'undeleter' ],
	[ "SELECT idemkit_renew('held', 'token')",                  'finisher', 'undeleter' ],
	[ "SELECT idemkit_guard('held', 'token')",                  'finisher', 'undeleter' ],
	[ "SELECT * FROM idemkit_get('held')",                      'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_subscribe(ARRAY['held'])",                'finisher', 'undeleter' ],
	[ "SELECT idemkit_wait('done')",                            'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim_many(ARRAY['new 1', 'new 2'])",     'starter', 'undeleter' ],
	[ "SELECT idemkit_claim_many(ARRAY['held', 'done'])",       'reader', 'starter', 'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim_many(ARRAY['lapsed', 'expired'])",  'finisher', 'undeleter' ],
	[ "SELECT idemkit_claim_many(ARRAY['lapsed', 'new'])",      'undeleter' ],
	[ "SELECT idemkit_complete_many(ARRAY['held'], ARRAY['token'])", 'finisher', 'undeleter' ],
	[ 'SELECT idemkit_stats()',                                 'reader', 'starter', 'finisher', 'undeleter' ],
	[ 'SELECT idemkit_vacuum()' ],
	[ 'SELECT idemkit_vacuum(0)' ],
	[ 'SELECT idemkit_vacuum(max_rows => 1)' ],
	[ 'CALL idemkit_sweep()' ]);

foreach my $role ('app', 'stranger', 'reader', 'starter', 'finisher', 'undeleter')
{
	foreach my $statement (@statements)
	{
		my ($sql, @allowed) = @$statement;
		my $state = (grep { $_ eq $role } 'app', @allowed) ? '00000' : '42501';
		my $before;

		$node->value($setup);
		$before = $node->value('SELECT r FROM idemkit_records r ORDER BY 1') if $state ne '00000';
		is($node->sqlstate($sql, $role), $state, "$role: $sql");
		is($node->value('SELECT r FROM idemkit_records r ORDER BY 1'),
			$before, "$role: nothing was changed by it")
		  if $state ne '00000';
	}
}

# Everybody may ask for what touches no row.
is($node->sqlstate("SELECT idemkit_effective_key('a', 'b')", 'stranger'),
	'00000', 'stranger: idemkit_effective_key');
is($node->sqlstate('SELECT idemkit_verify_schema()', 'stranger'),
	'00000', 'stranger: idemkit_verify_schema');

# Rights are looked at in every call, whoever prepared the plan before.
my $session = $node->session;
$node->value($setup);
foreach my $round (1, 2)
{
	is($node->session_sqlstate($session, "SELECT idemkit_claim('by superuser $round')"),
		'00000', "round $round: superuser, own plans");
	$session->query_safe('SET ROLE stranger');
	is($node->session_sqlstate($session, "SELECT idemkit_claim('held')"),
		'42501', "round $round: the same session as a stranger");
	is($node->session_sqlstate($session, "SELECT idemkit_complete('held', 'token')"),
		'42501', "round $round: another verb as a stranger");
	$session->query_safe('SET ROLE app');
	is($node->session_sqlstate($session, "SELECT idemkit_claim('by app $round')"),
		'00000', "round $round: the same session as a role with rights");
	$session->query_safe('RESET ROLE');
}
$node->value('GRANT app TO stranger');
$session->query_safe('SET ROLE stranger');
is($node->session_sqlstate($session, "SELECT idemkit_claim('held')"), '00000', 'rights granted since are seen');
$session->query_safe('RESET ROLE');
$node->value('REVOKE app FROM stranger');
$session->query_safe('SET ROLE stranger');
is($node->session_sqlstate($session, "SELECT idemkit_claim('held')"), '42501', 'rights revoked since are seen');
$session->quit;

# A SECURITY DEFINER function lends its owner's rights, and only those.
$node->value(q{
	CREATE FUNCTION claim_for_stranger(key text) RETURNS text LANGUAGE sql SECURITY DEFINER
		SET search_path = public, pg_temp AS 'SELECT result FROM idemkit_claim(key)';
	ALTER FUNCTION claim_for_stranger OWNER TO app;});
is($node->value("SELECT claim_for_stranger('lent')", 'stranger'),
	'new_claimed', 'SECURITY DEFINER lends the rights of its owner');
is($node->sqlstate("SELECT idemkit_claim('lent')", 'stranger'), '42501', 'and not beyond itself');

# Tables of one's own.
is($node->sqlstate("SELECT idemkit_create_table('mine')", 'app'),
	'42501', 'idemkit_create_table needs the right to create in the schema');
$node->value('CREATE SCHEMA app AUTHORIZATION app');
is($node->value("SELECT idemkit_create_table('mine')", 'app'), 'mine', 'in an own schema it works');
is($node->value("SELECT tableowner FROM pg_tables WHERE tablename = 'mine'"), 'app', 'the creator owns the table');
is($node->value("SELECT result FROM idemkit_claim('k', records => 'mine')", 'app'),
	'new_claimed', 'and works with it');
is($node->value("SELECT idemkit_create_table('mine')", 'app'), 'mine', 'creating it again changes nothing');

my $oid = $node->value("SELECT 'app.mine'::regclass::oid");
is($node->sqlstate("SELECT idemkit_claim('k', records => 'app.mine')", 'reader'),
	'42501', 'a name does not reach into a schema one may not use');
is($node->sqlstate("SELECT idemkit_claim('k', records => $oid)", 'reader'),
	'42501', 'nor does an OID give a right to its table');
$node->value('GRANT USAGE ON SCHEMA app TO reader; GRANT SELECT ON app.mine TO reader');
is($node->value("SELECT result FROM idemkit_claim('k', records => 'app.mine')", 'reader'),
	'already_claimed', 'with the rights granted it works');
$node->value(q{REVOKE SELECT ON app.mine FROM reader;
	GRANT SELECT (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
		lease_until, completed_at, response_status, response_headers, attempts, schema_version)
	ON app.mine TO reader});
is($node->sqlstate("SELECT idemkit_claim('k', records => 'app.mine')", 'reader'),
	'42501', 'one column that may not be read is one too many');
$node->value('GRANT SELECT (response_body) ON app.mine TO reader');
is($node->value("SELECT result FROM idemkit_claim('k', records => 'app.mine')", 'reader'),
	'already_claimed', 'rights on all columns that are read are enough');

# Adopting or mending a table is for its owner.
$node->value('ALTER TABLE app.mine DROP COLUMN attempts; GRANT CREATE ON SCHEMA app TO reader');
is($node->sqlstate("SET search_path = app, public; SELECT idemkit_create_table('mine')", 'reader'),
	'42501', 'a table is adopted by its owner only');
is($node->value("SELECT idemkit_create_table('mine')", 'app'), 'mine', 'who can');

$node->log_is_clean;
done_testing();
