# The server's clock stepped backwards and forwards while claims are live, by
# libfaketime.  A step means what docs/operations.md says and no more: no live claim
# is taken over, fences strictly increase, owners go on, vacuum removes nothing live.
#
# IDEMKIT_SEED=N repeats the steps of the last part, IDEMKIT_SIZE=N is their number.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;
use Time::HiRes qw(time usleep);

my ($library) = grep { -e } glob('/usr/lib*/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1');
plan skip_all => 'unavailable: libfaketime' if !defined $library;

my $seed  = IdemkitNode::seed();
my $steps = IdemkitNode::size(25, 1_500);
# The server measures its own timeouts by the clock that is stepped here.
my $node = IdemkitNode->prepare('main', "timezone = 'UTC'", "idemkit.notify = 'awaited'", 'statement_timeout = 0');
my $offset_file = $node->basedir . '/offset';
my $offset;

# Sets the server's clock that many seconds off the machine's.
sub set_offset
{
	($offset) = @_;

	open(my $file, '>', "$offset_file.new") or die "$offset_file.new: $!";
	printf $file "%+d\n", $offset;
	close($file) or die "$offset_file.new: $!";
	rename("$offset_file.new", $offset_file) or die "$offset_file: $!";
	return;
}

sub step { return set_offset($offset + $_[0]) }

set_offset(0);
{
	# Only what is the time of day is faked, and only for the server.
	local %ENV = (
		%ENV,
		LD_PRELOAD                   => $library,
		FAKETIME_TIMESTAMP_FILE      => $offset_file,
		FAKETIME_NO_CACHE            => 1,
		FAKETIME_DONT_FAKE_MONOTONIC => 1,
		NO_FAKE_STAT                 => 1);
	$node->start;
}
$node->value('CREATE EXTENSION idemkit');

# The instrument: sessions that are open already see a step at once.
my $session = $node->session;

sub server_offset
{
	my $before = time;
	my $server = $session->query_safe('SELECT extract(epoch FROM clock_timestamp())');

	return int(sprintf('%.0f', $server - ($before + time) / 2));
}

foreach my $to (0, -7200, 86400, 0)
{
	set_offset($to);
	is(server_offset(), $to, "the server's clock is $to s off");
}

# A win: token and fence.
sub win
{
	my ($key, $lease, $result) = @_;
	my ($verdict, $token, $fence) =
	  split(/\|/, $session->query_safe("SELECT result, our_claim_token, fence FROM idemkit_claim('$key', lease_ttl_seconds => $lease)"));

	is($verdict, $result, "$key is won");
	return ($token, $fence);
}

sub verdict { return $session->query_safe("SELECT result FROM idemkit_claim('$_[0]')") }

# What is left of a lease or a retention, to the second.
sub remaining
{
	return $session->query_safe("SELECT round(remaining_seconds) FROM idemkit_get('$_[0]')");
}

# Removes what is over, and tells whether anything went that was not.
sub vacuum_removes_only
{
	my ($name, @over) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $keys = 'SELECT effective_key FROM idemkit_records ORDER BY 1';
	my %left = map { $_ => 1 } split(/\n/, $session->query_safe($keys));

	$session->query_safe('SELECT idemkit_vacuum(lease_grace_seconds => 0)');
	delete $left{$_} foreach @over;
	is_deeply([ split(/\n/, $session->query_safe($keys)) ], [ sort keys %left ], "$name: vacuum removes what is over and nothing else");
	return;
}

foreach my $size (-3600, -86400 * 30)
{
	my $name = "$size s";
	my ($token, $fence) = win("claim $size", 30, 'new_claimed');
	my ($kept) = win("kept $size", 30, 'new_claimed');
	my ($done) = win("done $size", 30, 'new_claimed');
	my $again;

	is($session->query_safe("SELECT idemkit_complete('done $size', '$done', 200, expires_after_seconds => 60)"), 't', "$name: complete before the step");
	step($size);
	is(verdict("claim $size"), 'already_claimed', "$name: a live claim stays with its owner");
	is(verdict("done $size"), 'already_completed', "$name: a live result is replayed");
	vacuum_removes_only($name);
	cmp_ok(abs(remaining("claim $size") - 30 + $size), '<', 15, "$name: the lease lasts longer by the step");
	is($session->query_safe("SELECT idemkit_guard('claim $size', '$token')"), '', "$name: its owner may go on");
	is($session->query_safe("SELECT idemkit_renew('claim $size', '$token', 40)"), 't', "$name: renew works");
	cmp_ok(abs(remaining("claim $size") - 40), '<', 15, "$name: and the lease runs by the new clock");
	is($session->query_safe("SELECT idemkit_complete('kept $size', '$kept', 201, expires_after_seconds => 50)"), 't', "$name: complete works");
	cmp_ok(abs(remaining("kept $size") - 50), '<', 15, "$name: and the retention runs by the new clock");
	is($session->query_safe("SELECT idemkit_release('claim $size', '$token', true)"), 't', "$name: release works");
	($token, $again) = win("claim $size", 30, 'lease_reclaimed');
	cmp_ok($again, '>', $fence, "$name: the next fence is higher although the clock is lower");
	cmp_ok(abs(remaining("claim $size") - 30), '<', 15, "$name: its lease runs by the new clock");
	is($session->query_safe("SELECT idemkit_complete('claim $size', '$token', expires_after_seconds => 0)"), 't', "$name: it completes");
	is($session->query_safe("SELECT fence > $again FROM idemkit_claim_many(ARRAY['claim $size'])"), 't', "$name: nor does the fence of a batch fall");
}

# Forwards, first by less than what is left, then by more.
set_offset(0);
$session->query_safe('TRUNCATE idemkit_records');
my ($token, $fence) = win('claim', 300, 'new_claimed');
my ($done) = win('done', 300, 'new_claimed');
$session->query_safe("SELECT idemkit_complete('done', '$done', 200, expires_after_seconds => 300)");
my ($slow) = win('slow', 300, 'new_claimed');
step(120);
is(verdict('claim'), 'already_claimed', 'forwards by less than the lease: the claim is live');
is(verdict('done'), 'already_completed', 'and so is the result');
cmp_ok(abs(remaining('claim') - 180), '<', 15, 'with the step less of its lease');
vacuum_removes_only('forwards by less than the lease');
step(240);
is($session->query_safe("SELECT result FROM idemkit_claim('claim', reclaim => false)"), 'lease_lapsed', 'by more: the claim has lapsed');
is($session->query_safe("SELECT idemkit_renew('slow', '$slow', 60)"), 't', 'whose owner renews it if nobody was faster');
is(verdict('slow'), 'already_claimed', 'and then has it as before');
my (undef, $next) = win('claim', 30, 'lease_reclaimed');
cmp_ok($next, '>', $fence, 'who takes over has the higher fence');
is($session->query_safe("SELECT idemkit_complete('claim', '$token'), idemkit_renew('claim', '$token'), idemkit_release('claim', '$token')"),
	'f|f|f', 'and the owner before can do nothing');
vacuum_removes_only('forwards by more', 'done');

# A call that waits while the clock steps: its lease and its timeout are as long as
# they were to be.
my $waiter = $node->session;
my $pid    = $waiter->query_safe('SELECT pg_backend_pid()');
foreach my $size (-3600, 3600)
{
	my $key = "waited $size";

	$session->query_safe("BEGIN; SELECT idemkit_claim('$key')");
	$node->begin_statement($waiter, "SELECT result, round(remaining_seconds) FROM idemkit_claim('$key', lease_ttl_seconds => 30)");
	$node->wait_until_blocked($pid);
	step($size);
	$session->query_safe('ROLLBACK');
	is($waiter->query(''), 'new_claimed|30', "a claim that waited while the clock stepped by $size s");
	cmp_ok(abs(remaining($key) - 30), '<', 15, 'has its lease by the new clock');

	$session->query_safe("SELECT idemkit_claim('$key long', lease_ttl_seconds => 7200)");
	$node->begin_statement($waiter, "SELECT outcome FROM idemkit_wait('$key long', 1)");
	$node->poll_query_until('postgres', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'nobody waits';
	my $began = time;
	step($size);
	is($waiter->query(''), 'timeout', "idemkit_wait while the clock steps by $size s ends at its timeout");
	cmp_ok(time - $began, '>', 0.3, 'and not before it') if $size > 0;
	cmp_ok(time - $began, '<', 15, 'nor much after');
}
$waiter->quit;
$session->quit;

# Many sessions while the clock jumps about.  A trigger looks at every change: an
# owner is followed by another only after the end of its lease by the clock that the
# other one read, which is where its own lease begins; results end likewise.
set_offset(0);
$node->value(q{
	SELECT idemkit_create_table('jumpy');
	CREATE TABLE breaches (breach text, old jumpy, new jumpy);
	CREATE SEQUENCE takeovers;
	CREATE SEQUENCE removals;
	CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE
		breach text;
	BEGIN
		IF TG_OP = 'DELETE' THEN
			PERFORM nextval('removals');
			-- vacuum read the clock after the first of these and before the second.
			breach := CASE WHEN OLD.lease_until >= greatest(current_setting('jumpy.before')::timestamptz, clock_timestamp())
				THEN 'removed a live row' END;
		ELSIF NEW.claimed_at <> OLD.claimed_at AND NEW.claim_token <> OLD.claim_token THEN
			PERFORM nextval('takeovers');
			breach := CASE WHEN NEW.claimed_at <= OLD.claimed_at THEN 'fence did not increase'
				WHEN OLD.lease_until >= NEW.lease_until - interval '2 s' THEN 'took over a live row' END;
		ELSIF OLD.state = 'COMPLETED' AND (NEW.state, NEW.response_status) IS DISTINCT FROM (OLD.state, OLD.response_status) THEN
			breach := 'changed a result';
		END IF;
		IF breach IS NOT NULL THEN
			INSERT INTO public.breaches VALUES (breach, OLD, NEW);
		END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER audit AFTER UPDATE OR DELETE ON jumpy FOR EACH ROW EXECUTE FUNCTION audit();
	CREATE PROCEDURE turn(key text) LANGUAGE plpgsql AS $$
	DECLARE
		claim idemkit_claim_result := idemkit_claim(key, lease_ttl_seconds => 2, records => 'jumpy');
	BEGIN
		COMMIT;
		IF claim.our_claim_token IS NULL THEN
			RETURN;
		END IF;
		IF random() < 0.3 THEN
			PERFORM idemkit_renew(key, claim.our_claim_token, 2, 'jumpy');
			COMMIT;
		END IF;
		IF random() < 0.5 THEN
			PERFORM idemkit_complete(key, claim.our_claim_token, 200 + (random() * 99)::int, expires_after_seconds => 1,
				records => 'jumpy');
		ELSIF random() < 0.3 THEN
			PERFORM idemkit_release(key, claim.our_claim_token, true, 'jumpy');
		END IF;
	END $$;
	CREATE FUNCTION tidy() RETURNS bigint LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM set_config('jumpy.before', clock_timestamp()::text, false);
		RETURN idemkit_vacuum(lease_grace_seconds => 0, records => 'jumpy');
	END $$});
my $seconds = int($steps * 0.15) + 2;
my $load    = IPC::Run::start(
	[
		'pgbench', '-n', '-c', 6, '-T', $seconds,
		'-f', $node->script("\\set n random(1, 400)\nCALL turn('key ' || :n);\n") . '@30',
		'-f', $node->script("SELECT tidy();\n") . '@1',
		$node->connstr('postgres')
	],
	'>', \my $output, '2>', \my $errors);
for (1 .. $steps)
{
	usleep(int(50_000 + rand(200_000)));
	# More often forwards, so that leases run out.
	step(int(rand(25)) - 10);
}
$load->finish;
is($errors =~ s/^pgbench .*\n//r, '', 'no call failed while the clock jumped about');
is($node->value('SELECT * FROM breaches LIMIT 3'), '', 'no live row was taken over or removed, no fence fell, no result changed');
my ($calls)   = $output =~ /transactions actually processed: (\d+)/;
my $takeovers = $node->value('SELECT last_value FROM takeovers');
my $removals  = $node->value('SELECT last_value FROM removals');
cmp_ok($takeovers, '>', 1, 'there were wins of stored records');
cmp_ok($removals, '>', 1, 'and removals');
IdemkitNode::report("clock: seed $seed, $steps steps, $calls transactions, $takeovers wins of stored records, $removals removals, "
	  . $node->value('SELECT count(*) FROM breaches') . ' breaches');

$node->log_is_clean;
done_testing();
