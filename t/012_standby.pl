# A streaming replica answers duplicates, wins nothing, and goes on with every
# record when it is promoted.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $primary = IdemkitNode->launch('primary');
$primary->backup('base');
my $standby = IdemkitNode->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my $token = $primary->value("SELECT our_claim_token FROM idemkit_claim('held', 'print', lease_ttl_seconds => 3600)");
$primary->value(q{
	SELECT our_claim_token AS token FROM idemkit_claim('done', 'print') \gset
	SELECT idemkit_complete('done', :'token', 201, '{"a": "b"}', repeat('body', 50000)::bytea);
	SELECT idemkit_claim('lapsed');
	UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour' WHERE effective_key = 'lapsed';
	SELECT idemkit_create_table('custom');
	SELECT idemkit_claim('custom', records => 'custom');
	SELECT idemkit_create_table('scratch', unlogged => true);
	SELECT idemkit_claim('scratch', records => 'scratch')});
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

my $session = $standby->session;
my %tried;    # functions of the extension

# Statements on the standby and the functions that they call.
sub note_calls { my ($sql) = @_; $tried{$1}++ while $sql =~ /(idemkit_\w+)\(/g; return $sql }

sub reads
{
	my ($sql, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is($session->query_safe(note_calls($sql)), $expected, $name);
}

is($session->query_safe('SELECT pg_is_in_recovery()'), 't', 'the standby is one');

# By reading.
reads("SELECT result, our_claim_token IS NULL, claim_token = '$token', fingerprint_matches,"
		. " remaining_seconds BETWEEN 3000 AND 3600 FROM idemkit_claim('held', 'print')",
	'already_claimed|t|t|t|t', 'a claim in flight is reported');
reads("SELECT result, fingerprint_matches, response_status, response_headers, md5(response_body)"
		. " = md5(repeat('body', 50000)) FROM idemkit_claim('done', 'another')",
	'already_completed|f|201|{"a": "b"}|t', 'a result is replayed');
reads("SELECT result FROM idemkit_claim('lapsed', reclaim => false)",
	'lease_lapsed', 'a lapsed claim is reported');
reads("SELECT state FROM idemkit_get('done')", 'COMPLETED', 'get');
reads("SELECT count(*) FROM idemkit_get('absent')", '0', 'get of an absent key');
reads("SELECT result FROM idemkit_claim('custom', records => 'custom')",
	'already_claimed', 'a custom table');
reads("SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['done', 'held', 'done'])",
	'already_completed already_claimed already_completed', 'a batch of duplicates');
reads("SELECT outcome, response_status FROM idemkit_wait('done')", 'completed|201', 'wait');
reads("SELECT effective_key, state FROM idemkit_subscribe(ARRAY['done', 'held', 'absent']) ORDER BY 1",
	"done|COMPLETED\nheld|CLAIMED", 'subscribe just reads');
reads('SELECT live_claims, lapsed_claims, live_completions FROM idemkit_stats()', '1|1|1', 'stats');
reads('SELECT idemkit_verify_schema()', '', 'verify_schema');
reads("SELECT idemkit_create_table('custom')", 'custom', 'create_table where there is nothing to do');
reads("SELECT idemkit_effective_key('tenant', 'key') ~ '^[0-9a-f]{64}\$'", 't', 'effective_key');

# What would write is refused, as any write there is.
foreach my $sql (
	"SELECT idemkit_claim('absent')",
	"SELECT idemkit_claim('lapsed')",
	"SELECT idemkit_complete('held', '$token')",
	"SELECT idemkit_release('held', '$token')",
	"SELECT idemkit_renew('held', '$token')",
	"SELECT idemkit_guard('held', '$token')",
	"SELECT idemkit_claim_many(ARRAY['held', 'absent'])",
	"SELECT idemkit_claim_many(ARRAY['held', 'lapsed'])",
	"SELECT idemkit_complete_many(ARRAY['held'], ARRAY['$token'])",
	'SELECT idemkit_vacuum()',
	'SELECT idemkit_vacuum(0, max_rows => 0)',
	'CALL idemkit_sweep()',
	"SELECT idemkit_create_table('another')")
{
	is($standby->session_sqlstate($session, note_calls($sql)), '25006', "refused on a standby: $sql");
}
is( $primary->value(q{SELECT DISTINCT proname FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idemkit') ORDER BY 1}),
	join("\n", sort keys %tried), 'every function has been tried on a standby');
is($standby->session_sqlstate($session, "SELECT idemkit_claim('scratch', records => 'scratch')"),
	'0A000', 'an unlogged table cannot be read on a standby');
is($session->query_safe("SELECT result FROM idemkit_claim('done')"), 'already_completed', 'the session is none the worse');

# What the primary does meanwhile is seen, and wakes who waits.
my $waiting = $standby->session;
$standby->begin_statement($waiting, "SELECT outcome, response_status FROM idemkit_wait('held', 60)");
is($primary->value("SELECT idemkit_complete('held', '$token', 204)"), 't', 'completed on the primary');
my $next = $primary->value("SELECT our_claim_token FROM idemkit_claim('next', lease_ttl_seconds => 3600)");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is($session->query_safe("SELECT result, response_status FROM idemkit_claim('held')"),
	'already_completed|204', 'its result is replayed by the standby');
is($waiting->query(''), 'completed|204', 'a wait on the standby ends with it');
$waiting->quit;

# A read-only transaction on the primary is like a standby.
is($primary->value("BEGIN READ ONLY; SELECT result FROM idemkit_claim('held'); COMMIT"),
	'already_completed', 'a read-only transaction answers duplicates');
is($primary->sqlstate("BEGIN READ ONLY; SELECT idemkit_claim('absent')"), '25006', 'and wins nothing');

# Failover: the session, its plans and the owner's token go on.
$primary->stop('immediate');
$standby->promote;
is($session->query_safe("SELECT result FROM idemkit_claim('next')"), 'already_claimed', 'after failover a claim is held');
is($session->query_safe("SELECT idemkit_complete('next', '$next', 200)"), 't', 'its owner completes it');
is($session->query_safe("SELECT result FROM idemkit_claim('absent')"), 'new_claimed', 'new keys are won');
is($session->query_safe("SELECT result, attempts FROM idemkit_claim('lapsed')"), 'lease_reclaimed|2', 'lapsed ones taken over');
is($session->query_safe("SELECT idemkit_vacuum(0) > 0"), 't', 'and vacuum works');
$session->quit;

$_->log_is_clean foreach $primary, $standby;
done_testing();
