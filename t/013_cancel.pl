# A call that waits for another transaction can be cancelled, by a timeout or by
# hand; the session goes on, and nothing of the call remains.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node   = IdemkitNode->launch('main');
my $holder = $node->session;
my $waiter = $node->session;
my $pid    = $waiter->query_safe('SELECT pg_backend_pid()');
my $others = $node->session;    # for what is done besides
$others->query_safe('SET client_min_messages = warning');

# What ends a wait, and the SQLSTATE it ends with.
my @ends = (
	[ 'lock_timeout',      "SET lock_timeout = '50ms'",      '55P03', undef ],
	[ 'statement_timeout', "SET statement_timeout = '50ms'", '57014', undef ],
	[ 'pg_cancel_backend', 'SELECT',                          '57014', "SELECT pg_cancel_backend($pid)" ]);

# What is waited for: the setup, what the holder does in its transaction, and
# the call that waits for it.
my @waits = (
	[ 'claim of a key that is being inserted', 'SELECT', "SELECT idemkit_claim('k')", "SELECT idemkit_claim('k')" ],
	[
		'claim of a lapsed key that is being taken over',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 h'",
		"SELECT idemkit_claim('k')", "SELECT idemkit_claim('k')"
	],
	[
		'claim of an expired key that is being deleted',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 h'",
		'SELECT idemkit_vacuum()', "SELECT idemkit_claim('k')"
	],
	[ 'batch with a key that is being inserted', 'SELECT', "SELECT idemkit_claim('k')", "SELECT idemkit_claim_many(ARRAY['a', 'k', 'z'])" ],
	[
		'batch with a lapsed key that is being taken over',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 h'",
		"SELECT idemkit_claim('k')", "SELECT idemkit_claim_many(ARRAY['a', 'k', 'z'])"
	],
	[
		'batch that completes a guarded claim',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
		"SELECT idemkit_guard('k', 'token')", "SELECT idemkit_complete_many(ARRAY['a', 'k'], ARRAY['token', 'token'])"
	],
	[
		'subscription to a guarded claim',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
		"SELECT idemkit_guard('k', 'token')", "SELECT state FROM idemkit_subscribe(ARRAY['a', 'k'])"
	],
	(
		map {
			[
				"$_ of a claim that is guarded",
				"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
				"SELECT idemkit_guard('k', 'token')",
				"SELECT idemkit_$_('k', 'token')"
			]
		} 'complete',
		'release',
		'renew',
		'guard'
	),
	[
		'release that keeps the attempts of a claim that is guarded',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
		"SELECT idemkit_guard('k', 'token')", "SELECT idemkit_release('k', 'token', true)"
	],
	[
		'table that is made where another one is', 'DROP TABLE IF EXISTS ours',
		"SELECT idemkit_create_table('theirs')",
		"SELECT idemkit_create_table('ours')"
	],
	(
		map {
			[
				"$_ of a locked table",
				"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
				'LOCK TABLE idemkit_records',
				/^CALL/ ? $_ : "SELECT $_"
			]
		} "idemkit_claim('k')",
		"idemkit_claim_many(ARRAY['k', 'new'])",
		"idemkit_renew('k', 'token')",
		"idemkit_guard('k', 'token')",
		"idemkit_complete('k', 'token')",
		"idemkit_complete_many(ARRAY['k'], ARRAY['token'])",
		"idemkit_release('k', 'token')",
		"idemkit_release('k', 'token', true)",
		"idemkit_get('k')",
		"idemkit_subscribe(ARRAY['k'])",
		"idemkit_wait('k', 0)",
		'idemkit_vacuum()',
		'idemkit_vacuum(0, 0, 10)',
		'CALL idemkit_sweep()',
		'idemkit_stats()',
		'idemkit_verify_schema()',
		"idemkit_create_table('idemkit_records')"
	));
$node->value("SELECT idemkit_create_table('aside')");

foreach my $wait (@waits)
{
	my ($name, $setup, $hold, $call) = @$wait;

	foreach my $end (@ends)
	{
		my ($way, $setting, $state, $kill) = @$end;
		my $what = "$name, ended by $way";

		$others->query_safe("TRUNCATE idemkit_records; $setup");
		my $before = $others->query_safe('SELECT r FROM idemkit_records r');
		$holder->query_safe("BEGIN; $hold");
		$waiter->query_safe($setting);
		$node->begin_statement($waiter, $call);
		if (defined $kill)
		{
			$node->wait_until($what,
				sub { $others->query_safe("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid") eq 't' });
			$others->query_safe($kill);
		}
		is($node->session_sqlstate($waiter, ''), $state, $what);
		$waiter->query_safe('RESET lock_timeout; RESET statement_timeout');
		is($waiter->query_safe("SELECT result FROM idemkit_claim(\$k\$$what\$k\$, records => 'aside')"),
			'new_claimed', "$what: the session goes on");
		$holder->query_safe('ROLLBACK');
		is($others->query_safe('SELECT r FROM idemkit_records r'), $before, "$what: nothing has changed");
		is($node->session_sqlstate($waiter, $call), '00000', "$what: the same call then succeeds");
	}
}

# In a transaction with a savepoint the rest of it survives.
$node->value('TRUNCATE idemkit_records');
$holder->query_safe("BEGIN; SELECT idemkit_claim('k')");
$waiter->query_safe("BEGIN; SELECT idemkit_claim('kept')");
$waiter->query_safe('SAVEPOINT s');
$waiter->query_safe("SET LOCAL lock_timeout = '100ms'");
is($node->session_sqlstate($waiter, "SELECT idemkit_claim('k')"), '55P03', 'below a savepoint');
$waiter->query_safe('ROLLBACK TO s');
is($waiter->query_safe("SELECT result FROM idemkit_claim('after')"), 'new_claimed', 'the transaction goes on');
$waiter->query_safe('COMMIT');
$holder->query_safe('ROLLBACK');
is($node->value('SELECT string_agg(effective_key, $$ $$ ORDER BY effective_key) FROM idemkit_records'), 'after kept', 'and commits');

# A session that leaves its transaction open is ended by the server: what it had
# won in it is free, what it had won before and guarded is its own as before.
foreach my $case (
	[ 'claims', 'SELECT', "SELECT idemkit_claim('k')", 'new_claimed' ],
	[
		'guards',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET claim_token = 'token'",
		"SELECT idemkit_guard('k', 'token'); SELECT idemkit_complete('k', 'token')", 'already_claimed'
	],
	[
		'takes over',
		"SELECT idemkit_claim('k'); UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 h'",
		"SELECT idemkit_claim_many(ARRAY['k', 'l'])", 'lease_reclaimed'
	])
{
	my ($what, $setup, $work, $verdict) = @$case;
	my $idle = $node->session;

	$node->value("TRUNCATE idemkit_records; $setup");
	$idle->query_safe("SET idle_in_transaction_session_timeout = '1s'; BEGIN; $work");
	is($waiter->query_safe("SET lock_timeout = '60s'; SELECT result FROM idemkit_claim('k')"),
		$verdict, "idle_in_transaction_session_timeout of one that $what");
	eval { $idle->quit };
}
$waiter->query_safe('RESET lock_timeout');
$node->value('TRUNCATE idemkit_records');

# A claim that has waited holds its whole lease from when it won.
$holder->query_safe("BEGIN; SELECT idemkit_claim('k')");
$node->begin_statement($waiter,
	"SELECT clock_timestamp() AS asked \\gset\nSELECT result, lease_until - interval '30 s' > :'asked'::timestamptz"
	. " + interval '0.5 s', lease_until - interval '30 s' >= claimed_at, remaining_seconds > 29.9 FROM idemkit_claim('k')");
$node->wait_until_blocked($pid);
$node->value('SELECT pg_sleep(0.6)');    # the time that must not be missing from the lease
$holder->query_safe('ROLLBACK');
is($waiter->query(''), 'new_claimed|t|t|t', 'a claim that has waited has its whole lease');

# The shortest lease and retention there are: each call returns, although it
# takes longer than they last.
$node->value(q{TRUNCATE idemkit_records; SET statement_timeout = '10s';
	SELECT idemkit_claim('short', lease_ttl_seconds => 0.000001); UPDATE idemkit_records SET claim_token = 'token'});
foreach my $call (
	"idemkit_renew('short', 'token', 0.000001)",
	"idemkit_renew('short', 'token', 0.001)",
	"idemkit_complete('short', 'token', expires_after_seconds => 0.000001)")
{
	is($node->sqlstate("SET statement_timeout = '10s'; SELECT 1 / $call\:\:int" =~ s/\\//gr), '00000', "it returns, and true: $call");
}

# A backend that is terminated while it waits leaves nothing either.
$holder->query_safe("BEGIN; SELECT idemkit_claim('last')");
$node->begin_statement($waiter, "SELECT idemkit_claim('last')");
$node->wait_until_blocked($pid);
$node->value("SELECT pg_terminate_backend($pid)");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
  or die 'the backend does not end';
$holder->query_safe('ROLLBACK');
is($node->value("SELECT result FROM idemkit_claim('last')"), 'new_claimed', 'a terminated backend holds nothing');

eval { $waiter->quit };
$holder->quit;
$others->quit;
$node->log_is_clean;
done_testing();
