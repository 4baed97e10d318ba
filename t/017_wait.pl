# idemkit_wait ends when the claim does, for whatever reason, and idemkit_subscribe
# lets no completion slip by.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node   = IdemkitNode->launch('main', 'deadlock_timeout = 100ms');
my $waiter = $node->session;
my $owner  = $node->session;
my $pid    = $waiter->query_safe('SELECT pg_backend_pid()');

# Waits until the waiter sleeps in idemkit_wait.
sub wait_until_asleep
{
	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'nobody waits';
	return;
}

sub claim
{
	my ($key, $lease) = @_;

	return $owner->query_safe("SELECT our_claim_token FROM idemkit_claim('$key', lease_ttl_seconds => " . ($lease // 600) . ')');
}

# Each way a claim can end while somebody waits for it.
foreach my $case (
	[ 'complete', sub { "SELECT idemkit_complete('$_[0]', '$_[1]', 200, '{}', 'body')" }, "completed|COMPLETED|200|body" ],
	[ 'release',  sub { "SELECT idemkit_release('$_[0]', '$_[1]')" }, 'absent|||' ],
	[ 'release-keeping-attempts', sub { "SELECT idemkit_release('$_[0]', '$_[1]', true)" }, 'lapsed|CLAIMED||' ],
	[
		'expired',
		sub { "SELECT idemkit_complete('$_[0]', '$_[1]', expires_after_seconds => 0)" }, 'absent|||'
	])
{
	my ($name, $end, $outcome) = @$case;
	my $wait = "SELECT outcome, state, response_status, convert_from(response_body, 'UTF8') FROM idemkit_wait('$name', 600)";

	foreach my $notify ('always', 'awaited', 'never')
	{
		my $key   = $name;
		my $token = claim($key);

		$owner->query_safe("SET idemkit.notify = $notify");
		$node->begin_statement($waiter, $wait);
		wait_until_asleep();
		$owner->query_safe('BEGIN; ' . $end->($key, $token));
		$owner->query_safe('ROLLBACK');
		wait_until_asleep();
		is($owner->query_safe($end->($key, $token)), 't', "$name, $notify: the claim ends");
		is($waiter->query(''), $outcome, "$name, $notify: so does the wait");
		is($waiter->query_safe($wait), $outcome, "$name, $notify: another wait ends at once");
		$owner->query_safe('DELETE FROM idemkit_records; RESET idemkit.notify');
	}
}

# By the clock.
my $answer = q{extract(epoch FROM clock_timestamp() - :'asked'::timestamptz)};
claim('short', 0.7);
is($waiter->query_safe("SELECT clock_timestamp() AS asked \\gset\n"
		. "SELECT outcome, clock_timestamp() > lease_until, clock_timestamp() < lease_until + interval '5 s' FROM idemkit_wait('short', 600)"),
	'lapsed|t|t', 'a wait ends when the lease does, and not before');
claim('long');
is($waiter->query_safe("SELECT clock_timestamp() AS asked \\gset\n"
		. "SELECT outcome, state, $answer BETWEEN 0.3 AND 5.3 FROM idemkit_wait('long', 0.3)"),
	'timeout|CLAIMED|t', 'a wait ends at its timeout');
is($waiter->query_safe("SELECT outcome FROM idemkit_wait('long', 0)"), 'timeout', 'a timeout of 0 just looks');
is($waiter->query_safe("SELECT outcome FROM idemkit_wait('nobody', 600)"), 'absent', 'nothing to wait for');

# A renewed lease is waited for to its new end.
my $token = claim('renewed', 1);
$node->begin_statement($waiter, "SELECT outcome, response_status FROM idemkit_wait('renewed', 600)");
wait_until_asleep();
is($owner->query_safe("SELECT idemkit_renew('renewed', '$token', 600)"), 't', 'renew');
$node->poll_query_until('postgres', q{SELECT clock_timestamp() > claimed_at + interval '1.5 s' FROM idemkit_get('renewed')});
wait_until_asleep();
is($owner->query_safe("SELECT idemkit_complete('renewed', '$token', 201)"), 't', 'complete');
is($waiter->query(''), 'completed|201', 'a wait follows the lease when it is renewed');

# In a transaction that is older than the claim's end.
$token = claim('old snapshot');
$waiter->query_safe('BEGIN; SELECT count(*) FROM idemkit_records');
$node->begin_statement($waiter, "SELECT outcome FROM idemkit_wait('old snapshot', 600)");
wait_until_asleep();
$owner->query_safe("SELECT idemkit_complete('old snapshot', '$token')");
is($waiter->query(''), 'completed', 'a wait in an open transaction sees the end');
$waiter->query_safe('COMMIT');
is($node->sqlstate("BEGIN ISOLATION LEVEL $_; SELECT idemkit_wait('long')"), '25001', "refused under $_")
  foreach 'REPEATABLE READ', 'SERIALIZABLE';

# A wait takes no lock that anybody else would wait for.
$node->begin_statement($waiter, "SELECT outcome FROM idemkit_wait('long', 600)");
wait_until_asleep();
is($node->sqlstate("SET lock_timeout = '5s'; UPDATE idemkit_records SET awaited = false WHERE effective_key = 'long'"),
	'00000', 'the row can be changed meanwhile');

# It can be ended.
$node->value("SELECT pg_cancel_backend($pid)");
is($node->session_sqlstate($waiter, ''), '57014', 'a wait can be cancelled');
$waiter->query_safe("SET statement_timeout = '100ms'");
is($node->session_sqlstate($waiter, "SELECT idemkit_wait('long', 600)"), '57014', 'statement_timeout ends it');
$waiter->query_safe('RESET statement_timeout');
is($waiter->query_safe("SELECT outcome FROM idemkit_wait('long', 0)"), 'timeout', 'the session goes on');
$node->begin_statement($waiter, "SELECT outcome FROM idemkit_wait('long', 600)");
wait_until_asleep();
$node->value("SELECT pg_terminate_backend($pid)");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
  or die 'the backend does not end';
eval { $waiter->quit };

# Many wait for one.
$token = claim('crowd');
my @crowd = map { $node->session } 1 .. 10;
$node->begin_statement($_, "SELECT outcome, response_status FROM idemkit_wait('crowd', 600)") foreach @crowd;
$node->poll_query_until('postgres', "SELECT count(*) = 10 FROM pg_stat_activity WHERE wait_event_type = 'Extension'")
  or die 'not all wait';
$owner->query_safe("SELECT idemkit_complete('crowd', '$token', 204)");
is(join(' ', map { scalar $_->query('') } @crowd), join(' ', ('completed|204') x 10), 'all who wait are told');
$_->quit foreach @crowd;

# Subscribing while the claim ends: whoever is told that it is in flight hears of
# its end, even if only awaited ends are announced.
my $rounds    = 100 * $IdemkitNode::long;
my $listener  = $node->session;
my $completer = $node->session;
my ($missed, $in_flight, $heard) = (0, 0, 0);
$listener->query_safe('LISTEN idemkit_completions');
$completer->query_safe('SET idemkit.notify = awaited');
foreach my $round (1 .. $rounds)
{
	my $key = "round $round";
	$token = claim($key);

	# Both are on their way before either is waited for.  To hit all
	# interleavings the one that is sent first changes.
	my @statements = (
		[ $listener,  "SELECT state FROM idemkit_subscribe(ARRAY['no key', '$key']);" ],
		[ $completer, "SELECT idemkit_complete('$key', '$token');" ]);
	foreach my $statement ($round % 2 ? @statements : reverse @statements)
	{
		my ($session, $sql) = @$statement;

		$session->{stdin} .= "$sql\n";
		$session->{run}->pump_nb();
	}
	my $said = $listener->query('');
	die 'complete failed' if $completer->query('') !~ /^t$/m;
	$in_flight++ if $said =~ /^CLAIMED$/m;
	next if $said !~ /^CLAIMED$/m;
	# Notifications sent before this one have arrived when it has.
	$node->value("NOTIFY idemkit_completions, 'end of $key'");
	$node->wait_until("the end of $key", sub { $said .= $listener->query('SELECT'); $said =~ /"end of $key"/ });
	$said =~ /payload "$key" / ? $heard++ : $missed++;
}
is($missed, 0, "no completion was missed by a subscriber that saw its claim in flight ($in_flight times)");
cmp_ok($in_flight, '>', 0, 'some did');
is($node->value("SELECT count(*) FROM idemkit_records WHERE awaited AND state = 'CLAIMED'"), '0', 'no claim is left');

# A mark lasts for the claim it was made for.
$token = claim('marked');
is($owner->query_safe("SELECT effective_key, state FROM idemkit_subscribe(ARRAY['marked', 'none', 'marked', 'crowd'])"),
	"crowd|COMPLETED\nmarked|CLAIMED", 'subscribing returns what there is');
is($node->value(q{SELECT awaited FROM idemkit_records WHERE effective_key IN ('marked', 'crowd') ORDER BY effective_key}),
	"f\nt", 'and marks what is in flight');
my $xmin = $node->value(q{SELECT xmin, ctid FROM idemkit_records WHERE effective_key = 'marked'});
$owner->query_safe("SELECT idemkit_subscribe(ARRAY['marked'])");
is($node->value(q{SELECT xmin, ctid FROM idemkit_records WHERE effective_key = 'marked'}), $xmin, 'what is marked is only read');
$node->value(q{UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 s' WHERE effective_key = 'marked'});
claim('marked');
is($node->value(q{SELECT awaited FROM idemkit_records WHERE effective_key = 'marked'}), 'f', 'the next claim has no mark');
is($node->value("BEGIN READ ONLY; SELECT state FROM idemkit_subscribe(ARRAY['marked']); COMMIT"),
	'CLAIMED', 'a read-only transaction just reads');

$_->quit foreach $owner, $listener, $completer;
$node->log_is_clean;
done_testing();
