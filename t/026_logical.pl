# Logical replication of records tables, the extension's own and another: whatever a
# call does to a row arrives, removals that pass the executor by included, and the
# subscriber answers duplicates.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $publisher  = IdemkitNode->launch('publisher',  'wal_level = logical');
my $subscriber = IdemkitNode->launch('subscriber', 'wal_level = logical');
my @tables     = ('idemkit_records', 'custom');
my $columns    = 'effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until, completed_at,'
  . ' response_status, response_headers, md5(response_body), schema_version, awaited, attempts';

# The rows of a table that differ between the two, once all has arrived.
sub difference
{
	my ($table) = @_;

	$publisher->wait_for_catchup('records');
	my ($here, $there) = map { $_->value("SELECT $columns FROM $table ORDER BY effective_key") } $publisher, $subscriber;
	return $here eq $there ? '' : "$here\n---\n$there";
}

sub arrives
{
	my ($name, @sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $table (@tables)
	{
		$publisher->value(s/TABLE/$table/gr) foreach @sql;
		is(difference($table), '', "$table: $name");
	}
	return;
}

# Rows that are there before anybody subscribes.
$publisher->value(q{SELECT idemkit_create_table('custom')});
$subscriber->value(q{SELECT idemkit_create_table('custom')});
foreach my $table (@tables)
{
	$publisher->value(qq{
		SELECT idemkit_claim(k, 'print', lease_ttl_seconds => 3600, records => '$table') FROM unnest(ARRAY['held', 'done', 'kept']) k;
		SELECT idemkit_complete('done', claim_token, 201, '{"a": "b"}', repeat('body', 50000)::bytea, records => '$table')
			FROM $table WHERE effective_key = 'done';
		SELECT idemkit_claim('lapsed', lease_ttl_seconds => 0.000001, records => '$table')});
}
$publisher->value('CREATE PUBLICATION records FOR TABLE ' . join(', ', @tables));
$subscriber->value(q{CREATE SUBSCRIPTION records CONNECTION '} . $publisher->connstr . q{ dbname=postgres' PUBLICATION records});
$subscriber->poll_query_until('postgres', q{SELECT bool_and(srsubstate IN ('r', 's')) FROM pg_subscription_rel})
  or die 'the tables are not copied';
is(difference($_), '', "$_: what was there is copied") foreach @tables;

# What every call does to a row.
arrives('a claim', q{SELECT idemkit_claim('new', 'print', records => 'TABLE')});
arrives('a takeover', q{SELECT idemkit_claim('lapsed', 'another', lease_ttl_seconds => 3600, records => 'TABLE')});
arrives('a renewal', q{SELECT idemkit_renew('held', (SELECT claim_token FROM TABLE WHERE effective_key = 'held'), 7200, 'TABLE')});
arrives('a mark', q{SELECT idemkit_subscribe(ARRAY['held', 'new'], 'TABLE')});
arrives('a release', q{SELECT idemkit_release('new', (SELECT claim_token FROM TABLE WHERE effective_key = 'new'), false, 'TABLE')});
arrives('a release that keeps attempts',
	q{SELECT idemkit_release('kept', (SELECT claim_token FROM TABLE WHERE effective_key = 'kept'), true, 'TABLE')});
arrives('a batch of claims', q{SELECT idemkit_claim_many(ARRAY(SELECT 'b' || i FROM generate_series(1, 100) i), records => 'TABLE')});
arrives('a batch of completions',
	q{SELECT count(d) FROM (SELECT array_agg(effective_key) k, array_agg(claim_token) t FROM TABLE WHERE effective_key LIKE 'b%') r,
		LATERAL idemkit_complete_many(k, t, NULL, NULL, array_fill(repeat('body', 5000)::bytea, ARRAY[100]), 0, 'TABLE') d});

# A completion that had to wait writes its times once more, and not its large body.
foreach my $table (@tables)
{
	my ($owner, $other) = ($publisher->session, $publisher->session);
	my $key = 'waited';
	my $won = $owner->query_safe("SELECT our_claim_token FROM idemkit_claim('$key', records => '$table')");

	$other->query_safe("BEGIN; SELECT FROM $table WHERE effective_key = '$key' FOR UPDATE");
	my $pid = $owner->query_safe('SELECT pg_backend_pid()');
	$publisher->begin_statement($owner,
		"SELECT idemkit_complete('$key', '$won', 200, NULL, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i)::bytea, 600, '$table')");
	$publisher->wait_until_blocked($pid);
	$other->query_safe('SELECT pg_sleep(0.3); COMMIT');
	is($owner->query(''), 't', "$table: a completion that waited");
	is(difference($table), '', "$table: it arrives, with its body");
	$_->quit foreach $owner, $other;
}

# Removal: of expired rows straight from the index, by age, and in batches.
arrives('vacuum', q{SELECT idemkit_vacuum(max_rows => 50, records => 'TABLE')});
is($subscriber->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'b%'}), '50', 'fifty of a hundred are gone');
arrives('sweep', q{CALL idemkit_sweep(batch_rows => 10, records => 'TABLE')});
is($subscriber->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'b%'}), '0', 'and then the others');
arrives('vacuum by age',
	q{SELECT idemkit_complete('old', our_claim_token, records => 'TABLE') FROM idemkit_claim('old', records => 'TABLE')},
	q{UPDATE TABLE SET completed_at = clock_timestamp() - interval '1 hour' WHERE effective_key = 'old'},
	q{SELECT idemkit_vacuum(1800, records => 'TABLE')});

# What the subscriber's functions make of it, by reading.
foreach my $table (@tables)
{
	is($subscriber->value("SELECT result, our_claim_token IS NULL, fingerprint_matches FROM idemkit_claim('held', 'print', records => '$table')"),
		'already_claimed|t|t', "$table: the subscriber answers a duplicate of a claim");
	is( $subscriber->value("SELECT result, response_status, response_headers, md5(response_body) = md5(repeat('body', 50000))"
			  . " FROM idemkit_claim('done', 'print', records => '$table')"),
		'already_completed|201|{"a": "b"}|t', "$table: it replays a result");
	is($subscriber->value("SELECT count(*) FROM idemkit_subscribe(ARRAY['done', 'absent'], '$table')"), '1', "$table: subscribe reads there");
	is($subscriber->value("SELECT idemkit_verify_schema('$table'), state FROM idemkit_get('done', '$table')"), '|COMPLETED', "$table: so does get");
	my $waiting = $subscriber->session;

	$subscriber->begin_statement($waiting, "SELECT outcome, response_status FROM idemkit_wait('held', 60, '$table')");
	$publisher->value("SELECT idemkit_complete('held', claim_token, 204, records => '$table') FROM $table WHERE effective_key = 'held'");
	is($waiting->query(''), 'completed|204', "$table: a wait there ends when the completion arrives");
	$waiting->quit;
}

# A table whose rows have no identity takes claims, and nothing that changes a row.
$publisher->value(q{ALTER TABLE custom REPLICA IDENTITY NOTHING; SELECT idemkit_claim('unnamed', 'print', records => 'custom')});
my $unnamed = $publisher->value(q{SELECT claim_token FROM custom WHERE effective_key = 'unnamed'});
$publisher->value(q{ALTER TABLE custom REPLICA IDENTITY DEFAULT;
	SELECT idemkit_complete('over', our_claim_token, expires_after_seconds => 0, records => 'custom') FROM idemkit_claim('over', records => 'custom');
	SELECT idemkit_claim('lapsed2', lease_ttl_seconds => 0.000001, records => 'custom');
	ALTER TABLE custom REPLICA IDENTITY NOTHING});
my $before = $publisher->value('SELECT * FROM custom ORDER BY effective_key');
foreach my $sql (
	"SELECT idemkit_complete('unnamed', '$unnamed', records => 'custom')",
	"SELECT idemkit_renew('unnamed', '$unnamed', records => 'custom')",
	"SELECT idemkit_release('unnamed', '$unnamed', records => 'custom')",
	"SELECT idemkit_release('unnamed', '$unnamed', true, 'custom')",
	"SELECT idemkit_claim('lapsed2', records => 'custom')",
	"SELECT idemkit_claim_many(ARRAY['lapsed2'], records => 'custom')",
	"SELECT idemkit_complete_many(ARRAY['unnamed'], ARRAY['$unnamed'], records => 'custom')",
	"SELECT idemkit_subscribe(ARRAY['unnamed'], 'custom')",
	"SELECT idemkit_vacuum(records => 'custom')",
	"SELECT idemkit_vacuum(0, records => 'custom')",
	"CALL idemkit_sweep(records => 'custom')")
{
	is($publisher->sqlstate($sql), '55000', "without replica identity: $sql");
}
is($publisher->value('SELECT * FROM custom ORDER BY effective_key'), $before, 'and nothing is changed');
is($publisher->value("SELECT result FROM idemkit_claim('unnamed', records => 'custom')"), 'already_claimed', 'duplicates are answered');

# With the whole row as its identity all works again, by a unique index too.
foreach my $identity ('FULL', 'USING INDEX custom_pkey')
{
	$publisher->value("ALTER TABLE custom REPLICA IDENTITY $identity");
	$publisher->value(q{
		SELECT idemkit_claim('lapsed2', lease_ttl_seconds => 0.000001, records => 'custom');
		SELECT idemkit_complete('gone', our_claim_token, expires_after_seconds => 0, records => 'custom') FROM idemkit_claim('gone', records => 'custom');
		SELECT idemkit_complete('unnamed', claim_token, records => 'custom') FROM custom WHERE effective_key = 'unnamed'});
	is(difference('custom'), '', "replica identity $identity: changes arrive");
	is($publisher->value("SELECT idemkit_vacuum(records => 'custom') > 0"), 't', "replica identity $identity: vacuum removes");
	is(difference('custom'), '', "replica identity $identity: removals arrive");
}

# The subscriber goes on alone.
$subscriber->value('DROP SUBSCRIPTION records');
is($subscriber->value("SELECT idemkit_complete('lapsed', claim_token, 200, records => 'custom') FROM custom WHERE effective_key = 'lapsed'"),
	't', 'the owner of a claim completes it on the subscriber');
is($subscriber->value("SELECT result FROM idemkit_claim('alone', records => 'custom')"), 'new_claimed', 'and new keys are won there');

$_->log_is_clean foreach $publisher, $subscriber;
done_testing();
