# Forty sessions claim one key at the same moment, many times over: one wins,
# and every other one is told the truth.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $clients = 40;
my $rounds  = 25 * $IdemkitNode::long;

my $node = IdemkitNode->launch('main', 'max_locks_per_transaction = 256');

$node->value(q{
	CREATE UNLOGGED TABLE verdicts (race text, round int, client int, result text, token text,
		seen_token text, recovered bool, matches bool, attempts int, committed bool);
	-- Lets all clients of a round go once all of them stand at the line.
	CREATE PROCEDURE referee(race int, rounds int, clients int, patience int) LANGUAGE plpgsql AS $$
	DECLARE
		deadline timestamptz := clock_timestamp() + make_interval(secs => patience);
	BEGIN
		FOR round IN 1..rounds LOOP
			LOOP
				EXIT WHEN clients = (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
					AND classid = race AND objid = round AND NOT granted);
				IF clock_timestamp() > deadline THEN
					RAISE 'round % never filled', round;
				END IF;
				PERFORM pg_sleep(0.001);
			END LOOP;
			PERFORM pg_advisory_unlock(race, round);
		END LOOP;
	END $$;
});

my $race = 0;

# Runs the rounds of a race.  The script is what a client does after the start;
# it finds its round in :i and its key in :key.
sub run_race
{
	my ($name, $script) = @_;
	my $referee = $node->background_psql('postgres');

	$race++;
	$referee->query_safe("SELECT pg_advisory_lock($race, r) FROM generate_series(1, $rounds) r");
	$referee->query_until(qr/^ready$/m,
		"\\echo ready\nCALL referee($race, $rounds, $clients, $IdemkitNode::patience);\n");
	$node->bench("$name: no session gets an error",
		"-c $clients -j 2 -t $rounds -D i=0", qq{
\\set i :i + 1
SELECT '$name-' || :i AS key \\gset
SELECT pg_advisory_lock_shared($race, :i);
SELECT pg_advisory_unlock_shared($race, :i);
$script
});
	$referee->quit;
	return;
}

# Rounds whose verdicts are not one winner with $result and losers that saw the
# winner's claim; each as a line.
sub bad_rounds
{
	my ($name, $result, $recovered, $attempts) = @_;

	return $node->value(qq{
		SELECT v.round, count(*), count(*) FILTER (WHERE v.committed AND v.token <> ''),
			string_agg(DISTINCT v.result, ',')
		FROM verdicts v
		LEFT JOIN idemkit_records r ON r.effective_key = '$name-' || v.round
		WHERE v.race = '$name'
		GROUP BY v.round
		HAVING count(*) <> $clients
			OR count(*) FILTER (WHERE v.committed AND v.token <> '') <> 1
			OR NOT bool_and(CASE
				WHEN v.token = '' THEN v.result = 'already_claimed' AND NOT v.recovered
					AND NOT v.matches AND v.seen_token = r.claim_token AND v.attempts = $attempts
				WHEN v.committed THEN v.result = '$result' AND v.recovered = $recovered
					AND v.matches AND v.token = r.claim_token AND v.seen_token = v.token
					AND v.attempts = $attempts
				ELSE v.result = '$result' END)
		ORDER BY v.round});
}

my $claim = q{
SELECT result, coalesce(our_claim_token, '') AS token, claim_token, recovered_from_corrupt AS recovered,
	fingerprint_matches AS matches, attempts, (our_claim_token IS NOT NULL)::int AS won
	FROM idemkit_claim(':key', 'client :client_id', lease_ttl_seconds => 600) \gset
};
my $record = q{
INSERT INTO verdicts VALUES (':race', :i, :client_id, ':result', ':token', ':claim_token',
	':recovered', ':matches', :attempts, :committed);
};

# Each state a key can be claimed from, with claims that commit at once.
foreach my $case (
	[ 'absent', '', 'new_claimed', 'false', 1 ],
	[
		'lapsed', q{UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 minute'},
		'lease_reclaimed', 'false', 2
	],
	[
		'expired', q{SELECT idemkit_complete(effective_key, claim_token, expires_after_seconds => 0)
			FROM idemkit_records}, 'new_claimed', 'false', 1
	],
	[ 'corrupt', q{UPDATE idemkit_records SET schema_version = 99}, 'new_claimed', 'true', 1 ])
{
	my ($name, $setup, $result, $recovered, $attempts) = @$case;

	if ($setup ne '')
	{
		$node->value(qq{
			TRUNCATE idemkit_records;
			SELECT idemkit_claim('$name-' || r) FROM generate_series(1, $rounds) r;
			$setup});
	}
	run_race($name, "\\set committed true\n$claim" . $record =~ s/:race/$name/r);
	is(bad_rounds($name, $result, $recovered, $attempts),
		'', "$name: one winner a round, seen by all others");
	is($node->value("SELECT count(*) FROM verdicts WHERE race = '$name' AND token <> ''"),
		$rounds, "$name: as many winners as rounds");
}

# Claims inside transactions, half of whose winners roll back: the key goes to
# one of those that wait.
run_race('rollback', qq{
BEGIN;
$claim
\\set committed :won = 0 or random(1, 2) = 1
\\if :committed
END;
\\else
ROLLBACK;
\\endif
} . $record =~ s/:race/rollback/r);
is(bad_rounds('rollback', 'new_claimed', 'false', 1),
	'', 'rollback: one winner that commits, seen by all others');
cmp_ok($node->value("SELECT count(*) FROM verdicts WHERE race = 'rollback' AND NOT committed"),
	'>', 0, 'rollback: some winners did roll back');

$node->storage_is_sound('idemkit_records');
$node->log_is_clean;
done_testing();
