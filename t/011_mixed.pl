# Programs of the Python package and the extension's functions work on one
# table at the same time: never do two of them hold a key at once.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

IdemkitNode::needs_version(14, 'a pgbench that leaves an \\if within a branch not taken alone (t/011_mixed.pl)');

my $clients = 16;
my $turns   = 400 * $IdemkitNode::long;
my $node    = IdemkitNode->launch('main');

# Whoever wins a key says so here, and takes it back before it ends its claim:
# two that hold a key at once run into the unique index, and pgbench fails.
$node->value(q{
	CREATE UNLOGGED TABLE wins (key text, token text, winner text, ended boolean DEFAULT false);
	CREATE UNIQUE INDEX ON wins (key) WHERE NOT ended;
	CREATE UNIQUE INDEX ON wins (token);
	CREATE UNLOGGED TABLE lost (key text, token text, winner text, what text);
});

my $hold = q{
INSERT INTO wins VALUES (':key', ':token', ':winner');
};
my $let_go = q{
UPDATE wins SET ended = true WHERE token = ':token';
};

# A lease that runs out, without waiting for it.
my $lapse = q{
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 s'
	WHERE effective_key = ':key' AND claim_token = ':token';
};

# A statement that the holder of a claim must succeed with.
sub must
{
	my ($what, $statement) = @_;

	return "SELECT ($statement)::int AS done \\gset\n\\if :done = 0\n"
	  . "INSERT INTO lost VALUES (':key', ':token', ':winner', '$what');\n\\endif\n";
}

sub must_change
{
	my ($what, $statement) = @_;

	return "WITH changed AS ($statement RETURNING 1) SELECT count(*) AS done FROM changed \\gset\n\\if :done = 0\n"
	  . "INSERT INTO lost VALUES (':key', ':token', ':winner', '$what');\n\\endif\n";
}

# The statements of the package: claim by up to three statements, each a
# transaction; complete and release with a notification.
my $is_mine = q{effective_key = ':key' AND state = 'CLAIMED' AND claim_token = ':token'};
my $take    = q{
WITH won AS (UPDATE idemkit_records SET state = 'CLAIMED', fingerprint = 'p', fingerprint_version = 1,
	claim_token = ':new', claimed_at = now(), lease_until = now() + '600000 milliseconds'::interval,
	completed_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL
	WHERE effective_key = ':key' AND state = '%s' AND lease_until < now() RETURNING *)
SELECT count(*) AS won, coalesce(min(claim_token), '') AS token FROM won \gset
};
my $package = q{
\set key random(1, 6)
\set winner 1
SELECT md5(random()::text || clock_timestamp()) AS new \gset
WITH won AS (INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until)
	VALUES (':key', 'CLAIMED', 'p', 1, ':new', now(), now() + '600000 milliseconds'::interval)
	ON CONFLICT (effective_key) DO NOTHING RETURNING *)
SELECT count(*) AS won, coalesce(min(claim_token), '') AS token FROM won \gset
\if :won = 0
} . sprintf($take, 'CLAIMED') . "\\endif\n\\if :won = 0\n" . sprintf($take, 'COMPLETED') . "\\endif\n\\if :won = 1\n"
  . $hold
  . must_change('renew', "UPDATE idemkit_records SET lease_until = now() + '600000 milliseconds'::interval WHERE $is_mine")
  . "\\set end random(1, 3)\n\\if :end = 1\nBEGIN;\n"
  . $let_go
  . must_change('complete', "UPDATE idemkit_records SET state = 'COMPLETED', completed_at = now(), lease_until = now(),"
	  . " response_status = 200, response_headers = '{}', response_body = ':winner' WHERE $is_mine")
  . "SELECT pg_notify('idemkit_completions', ':key');\nCOMMIT;\n\\elif :end = 2\nBEGIN;\n"
  . $let_go
  . must_change('release', "DELETE FROM idemkit_records WHERE $is_mine")
  . "SELECT pg_notify('idemkit_completions', ':key');\nCOMMIT;\n\\else\n"
  . $let_go . $lapse . "\\endif\n\\endif\n";

# The same with the functions, claim by claim or in one transaction.
my $claim = q{
SELECT (our_claim_token IS NOT NULL)::int AS won, coalesce(our_claim_token, '') AS token
	FROM idemkit_claim(':key', 'f', lease_ttl_seconds => 600) \gset
};
my $functions = qq{
\\set key random(1, 6)
\\set winner 2
$claim
\\if :won = 1
$hold
} . must('renew', q{SELECT idemkit_renew(':key', ':token', 600)}) . q{
\set end random(1, 4)
\if :end = 1
} . $let_go . must('complete', q{SELECT idemkit_complete(':key', ':token', 200, expires_after_seconds => 0)}) . q{
\elif :end = 2
} . $let_go . must('release', q{SELECT idemkit_release(':key', ':token')}) . q{
\elif :end = 3
} . $let_go . must('release keeping attempts', q{SELECT idemkit_release(':key', ':token', true)}) . q{
\else
} . $let_go . $lapse . "\\endif\n\\endif\n";

my $transaction = qq{
\\set key random(1, 6)
\\set winner 3
BEGIN;
$claim
\\if :won = 1
$hold
SELECT idemkit_guard(':key', ':token');
} . $let_go . must('complete', q{SELECT idemkit_complete(':key', ':token', 200, expires_after_seconds => 0)}) . q{
\endif
\if random(1, 4) = 1
ROLLBACK;
\else
COMMIT;
\endif
};

# Batches, each in one transaction.
my $batch = q{
\set winner 4
BEGIN;
INSERT INTO wins SELECT effective_key, our_claim_token, '4' FROM idemkit_claim_many(ARRAY['5', '2', '4', '2'], lease_ttl_seconds => 600)
	WHERE our_claim_token IS NOT NULL ORDER BY effective_key;
WITH mine AS (UPDATE wins SET ended = true WHERE winner = '4' AND NOT ended AND xmin::text::bigint = txid_current() % (2^32)::bigint
		RETURNING key, token),
	ended AS (SELECT idemkit_complete_many(array_agg(key), array_agg(token), expires_after_seconds => 0) AS done FROM mine
		HAVING count(*) > 0)
INSERT INTO lost SELECT 'of a batch', '', '4', 'complete_many' FROM ended WHERE NOT done;
COMMIT;
};

# Somebody tidies up all the while.
my $vacuum = "SELECT idemkit_vacuum(lease_grace_seconds => 0);\n";

$node->bench('no key is held twice, whoever claims it', "-c $clients -j 2 -t $turns",
	$package, $functions, $transaction, $batch, $vacuum);
is($node->value('SELECT * FROM lost'), '', 'nobody loses a claim whose lease is live');
my %wins = map { split(/\|/, $_) } split(/\n/, $node->value('SELECT winner, count(*) FROM wins GROUP BY winner'));
cmp_ok($wins{$_->[0]} // 0, '>', 100, "$_->[1] won keys")
  foreach [ 1, 'programs of the package' ], [ 2, 'functions' ], [ 3, 'transactions' ], [ 4, 'batches' ];
is($node->value(q{SELECT count(*) FROM wins WHERE NOT ended}), '0', 'all claims came to their end');

$node->log_is_clean;
done_testing();
