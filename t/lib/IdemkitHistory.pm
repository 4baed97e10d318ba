# Random calls of every function of the extension, as steps of sessions: SQL, and how
# to read what psql prints for it as calls for IdemkitModel.
#
# Steps are made before anything runs (by IdemkitSessions), so that sessions cost the
# machine no more than psql does.  What it cannot know are claim tokens: each session keeps,
# for each key, the last token that it won ("own") and the last that an answer
# showed it ("seen"), in settings of its own, and the last it had in a transaction
# that was about to end ("lost", if that was rolled back), in a variable of psql; it
# passes one of them or a wrong one.
# (A token is all that ownership is: to complete with one that another session won
# is a true completion, and makes for races.)
#
# Every statement prints the database's clock before and after the call.  Where a
# call ends by an error it prints nothing: then the readings are those of the
# statements beside it.
package IdemkitHistory;

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(uniq);

our @EXPORT_OK = qw(pick);

use constant NULL => '~';

# What a test needs in its database.  There are two records tables; of one,
# being partitioned, all is read and removed by statements, see src/direct.c.
our $preparation = q{
	CREATE TABLE parts (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	-- Microseconds.
	CREATE FUNCTION us(timestamptz) RETURNS bigint LANGUAGE sql AS 'SELECT (extract(epoch FROM $1) * 1000000)::bigint';
	-- The row of a key by a new snapshot, and not that of the statement, which is older than its clock.
	CREATE FUNCTION stored(key text, records regclass) RETURNS SETOF idemkit_records LANGUAGE plpgsql AS $$
	BEGIN
		RETURN QUERY EXECUTE format('SELECT * FROM %s WHERE effective_key = $1', records) USING key;
	END $$;
	-- Keeps the tokens of an answer.
	CREATE FUNCTION remember(place text, own text, seen text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		IF own IS NOT NULL THEN
			PERFORM set_config('own.' || place, own, false);
		END IF;
		PERFORM set_config('seen.' || place, seen, false);
		RETURN '';
	END $$;
	CREATE FUNCTION token(name text) RETURNS text LANGUAGE sql AS $$ SELECT coalesce(current_setting(name, true), '') $$;
};

our @tables = ('idemkit_records', 'parts');

my $verbatim = join ', ', map { "c.$_" } qw(effective_key state fingerprint fingerprint_version claim_token);
my $stored   = "$verbatim, us(c.claimed_at), us(c.lease_until), us(c.completed_at), c.response_status, c.response_headers,"
  . " encode(c.response_body, 'hex'), c.attempts";
my $record   = "$stored, (c.remaining_seconds * 1000000)::bigint, c.fence";
my $verdict  = "c.result, c.our_claim_token, c.recovered_from_corrupt, c.fingerprint_matches, $record";
my @nothing  = (NULL) x 14;

sub pick { return $_[ int(rand(@_)) ] }

# keys: names, which must be simple.  The others are choices of microseconds:
# leases, retentions, timeouts (of waits), sleeps.  isolations: what may follow
# BEGIN.  single: whether what only one session may do is done, too.
sub new
{
	my ($class, %self) = @_;

	return bless { number => 0, isolations => [''], %self }, $class;
}

sub seconds { my ($usecs) = @_; return sprintf '%.6f', $usecs / 1_000_000 }

# As the argument records: the extension's own table is the default.
sub records { my ($table) = @_; return $table == 0 ? 'NULL' : "'$tables[$table]'" }

sub literal { my ($value) = @_; return $value eq NULL ? 'NULL' : "'$value'" }

sub array { my ($type, @values) = @_; return 'ARRAY[' . join(', ', map { literal($_) } @values) . "]::${type}[]" }

# An expression for a token that a session may pass.
sub random_token
{
	my ($table, $key) = @_;
	my $kind = pick(qw(own own own own own seen seen seen lost wrong));

	return $kind eq 'wrong' ? "'wrong'" : $kind eq 'lost' ? ":'lost_${key}_$table'" : "token('$kind.${key}_$table')";
}

# A step that is a statement which prints the clock, some columns and the clock.
# $given is what the call needs, as columns of b: they make it wait for the clock
# in b.  $read gets the rows without clocks, as arrays, and returns the calls.
sub question
{
	my ($verb, $given, $columns, $from, $read) = @_;

	return {
		verb => $verb,
		sql  => "SELECT us(b.at), $columns, us(clock_timestamp()) FROM (SELECT clock_timestamp() AS at, $given OFFSET 0) AS b $from",
		ends_with_clock => 1,
		read            => sub {
			return $read->(map { [ @$_[ 1 .. $#$_ - 1 ] ] } @_);
		}
	};
}

sub claim
{
	my ($self, $table, $key) = @_;
	my %call = (
		table               => $table,
		key                 => $key,
		fingerprint         => pick('f', 'f', 'g', ''),
		fingerprint_version => pick(1, 1, 1, 2),
		lease               => pick(@{ $self->{leases} }),
		reclaim             => pick(1, 1, 0));
	my $terms = "'$call{fingerprint}', $call{fingerprint_version}, " . seconds($call{lease}) . ", $call{reclaim}::boolean";

	return question('claim', "'$key'::text AS key",
		"remember('${key}_$table', c.our_claim_token, c.claim_token), $verdict",
		'CROSS JOIN LATERAL idemkit_claim(b.key, ' . $terms . ', ' . records($table) . ') AS c',
		sub { my (undef, @answer) = @{ $_[0] }; return { verb => 'claim', %call, answer => \@answer } });
}

sub claim_many
{
	my ($self, $table, @keys) = @_;
	my %call = (
		table               => $table,
		fingerprint_version => pick(1, 1, 1, 2),
		lease               => pick(@{ $self->{leases} }),
		reclaim             => pick(1, 1, 0));
	my @fingerprints = map { pick('f', 'f', 'g', '') } @keys;
	my $given        = array('text', @fingerprints);

	if (pick(1, 0))
	{
		@fingerprints = map { '' } @keys;
		$given        = 'NULL';
	}
	return question('claim_many', array('text', @keys) . ' AS keys',
		"remember(c.effective_key || '_$table', c.our_claim_token, c.claim_token), $verdict",
		"CROSS JOIN LATERAL idemkit_claim_many(b.keys, $given, $call{fingerprint_version}, " . seconds($call{lease})
		  . ", $call{reclaim}::boolean, " . records($table) . ') AS c',
		sub {
			die 'claim_many: ' . @_ . ' answers for ' . @keys . " keys\n" if @_ != @keys;
			return map {
				my (undef, @answer) = @{ $_[$_] };
				{ verb => 'claim', %call, key => $keys[$_], fingerprint => $fingerprints[$_], answer => \@answer }
			} 0 .. $#keys;
		});
}

# A response that no other call stores.
sub response
{
	my ($self) = @_;
	my $number = ++$self->{number};

	return (
		response_status  => pick($number, $number, NULL),
		response_headers => pick("{\"n\": $number}", '{}', NULL),
		response_body    => pick(sprintf('%08x', $number), sprintf('%08x', $number), '', NULL));
}

sub complete
{
	my ($self, $table, $key) = @_;
	my %call = (table => $table, key => $key, retention => pick(@{ $self->{retentions} }), $self->response);
	my $response = join ', ', literal($call{response_status}), literal($call{response_headers}),
	  "decode(" . literal($call{response_body}) . ", 'hex')";

	return question('complete', "'$key'::text AS key, " . random_token($table, $key) . ' AS token',
		"b.token, idemkit_complete(b.key, b.token, $response, " . seconds($call{retention}) . ', ' . records($table) . ')', '',
		sub { my ($token, @answer) = @{ $_[0] }; return { verb => 'complete', %call, claim_token => $token, answer => \@answer } });
}

sub complete_many
{
	my ($self, $table, @keys) = @_;
	my %call      = (table => $table, retention => pick(@{ $self->{retentions} }));
	my @responses = map { { $self->response } } @keys;
	my @tokens    = map { random_token($table, $_) } @keys;
	my %sql;

	foreach my $column (qw(response_status response_headers response_body))
	{
		my $given = pick(1, 1, 0);

		foreach (@responses) { $_->{$column} = NULL if !$given }
		$sql{$column} = $given ? [ map { $_->{$column} } @responses ] : undef;
	}
	$sql{response_status}  = $sql{response_status}  ? array('int',   @{ $sql{response_status} })  : 'NULL';
	$sql{response_headers} = $sql{response_headers} ? array('jsonb', @{ $sql{response_headers} }) : 'NULL';
	$sql{response_body} =
	  $sql{response_body} ? array('bytea', map { $_ eq NULL ? NULL : "\\x$_" } @{ $sql{response_body} }) : 'NULL';
	return question('complete_many',
		array('text', @keys) . ' AS keys, ARRAY[' . join(', ', @tokens) . '] AS tokens',
		'b.tokens[c.n], c.done',
		"CROSS JOIN LATERAL idemkit_complete_many(b.keys, b.tokens, $sql{response_status}, $sql{response_headers},"
		  . " $sql{response_body}, " . seconds($call{retention}) . ', ' . records($table) . ') WITH ORDINALITY AS c(done, n)',
		sub {
			die 'complete_many: ' . @_ . ' answers for ' . @keys . " keys\n" if @_ != @keys;
			return map {
				my ($token, @answer) = @{ $_[$_] };
				{ verb => 'complete', %call, %{ $responses[$_] }, key => $keys[$_], claim_token => $token, answer => \@answer }
			} 0 .. $#keys;
		});
}

# release, renew, guard: each is a token and one more argument, or none.
sub settle
{
	my ($verb, $table, $key, $argument, %arguments) = @_;

	return question($verb, "'$key'::text AS key, " . random_token($table, $key) . ' AS token',
		"b.token, idemkit_$verb(b.key, b.token, $argument" . records($table) . ')', '',
		sub {
			my ($token, @answer) = @{ $_[-1] };
			return { verb => $verb, table => $table, key => $key, %arguments, claim_token => $token, answer => \@answer };
		});
}

sub release
{
	my ($self, $table, $key) = @_;
	my $keep = pick(1, 0);

	return settle('release', $table, $key, $keep . '::boolean, ', keep_attempts => $keep);
}

sub renew
{
	my ($self, $table, $key) = @_;
	my $lease = pick(@{ $self->{leases} });

	return settle('renew', $table, $key, seconds($lease) . ', ', lease => $lease);
}

# A guard that fails prints nothing, not even which token it had: so that is
# printed before.
sub guard
{
	my ($self, $table, $key) = @_;
	my $step = settle('guard', $table, $key, '');
	my ($token) = $step->{sql} =~ /(\S+) AS token/;

	$step->{sql} = "SELECT us(clock_timestamp()), $token, 'IK001', us(clock_timestamp());\n$step->{sql}";
	return $step;
}

sub get
{
	my ($self, $table, $key) = @_;

	return question('get', "'$key'::text AS key", $record,
		'LEFT JOIN LATERAL idemkit_get(b.key, ' . records($table) . ') AS c ON true',
		sub { return { verb => 'get', table => $table, key => $key, answer => $_[0] } });
}

# The rows as they are in the table.  They are not all read at the same moment, so
# each only once.
sub stored
{
	my ($self, $table, @given) = @_;
	my @keys = uniq(@given);

	return question('stored', array('text', @keys) . ' AS keys', "c.schema_version, c.awaited, $stored",
		"CROSS JOIN LATERAL unnest(b.keys) AS k(key) LEFT JOIN LATERAL stored(k.key, '$tables[$table]') AS c ON true",
		sub {
			my @answers = @_;
			return map { { verb => 'stored', table => $table, key => $keys[$_], answer => $answers[$_] } } 0 .. $#keys;
		});
}

sub subscribe
{
	my ($self, $table, @keys) = @_;

	return question('subscribe', array('text', @keys) . ' AS keys', $record,
		'LEFT JOIN LATERAL idemkit_subscribe(b.keys, ' . records($table) . ') AS c ON true',
		sub {
			my %shown = map { $_->[0] => $_ } @_;
			my $rows  = join ' ', map { $_->[0] } @_;

			die "subscribe to @keys returned $rows\n"
			  if $rows ne NULL && $rows ne join(' ', sort grep { my $shown = $_; grep { $_ eq $shown } @keys } keys %shown);
			my %asked = map { $_ => 1 } @keys;
			return map {
				my %place = (table => $table, key => $_);
				({ verb => 'mark', %place }, { verb => 'get', %place, answer => $shown{$_} // \@nothing })
			} sort keys %asked;
		});
}

sub wait_for
{
	my ($self, $table, $key) = @_;
	my $timeout = pick(@{ $self->{timeouts} });

	return question('wait', "'$key'::text AS key", "c.outcome, $record",
		'CROSS JOIN LATERAL idemkit_wait(b.key, ' . seconds($timeout) . ', ' . records($table) . ') AS c',
		sub { return { verb => 'wait', table => $table, key => $key, timeout => $timeout, answer => $_[0] } });
}

# A removal is a call on every key.  What it removed, it does not tell: where that
# can be known, since nobody else is there, the rows are read after it.
sub removal
{
	my ($self, $verb, $table, $sql, %call) = @_;
	my $stored = $self->stored($table, @{ $self->{keys} });

	return {
		verb => $verb,
		sql  => "SELECT us(clock_timestamp());\n$sql" . ($self->{alone} ? ";\n$stored->{sql}" : ''),
		ends_with_clock => $self->{alone},
		%call,
		read => sub {
			my (undef, $removed, @rows) = @_;
			return (
				(map { { verb => 'vacuum', table => $table, key => $_, %call, removed => $removed->[0] } } @{ $self->{keys} }),
				@rows ? $stored->{read}->(@rows) : ());
		}
	};
}

sub vacuum
{
	my ($self, $table) = @_;
	my %call = (
		age      => pick(undef, undef, @{ $self->{retentions} }),
		grace    => pick(@{ $self->{leases} }, 0),
		max_rows => pick(undef, undef, 0, 1, 2));

	return $self->removal('vacuum', $table,
		'SELECT idemkit_vacuum(' . (defined $call{age} ? seconds($call{age}) : 'NULL') . ', ' . seconds($call{grace})
		  . ', ' . ($call{max_rows} // 'NULL') . ', ' . records($table) . ')', %call);
}

sub sweep
{
	my ($self, $table) = @_;
	my %call = (grace => pick(@{ $self->{leases} }, 0));

	return $self->removal('sweep', $table,
		'CALL idemkit_sweep(0, ' . pick(1, 2, 5000) . ', ' . seconds($call{grace}) . ', ' . records($table) . ')', %call);
}

# What one does behind the extension's back.  To all keys: their times are moved
# into the past, or those of their claims into the future, as if the clock had since
# been set back.
sub age
{
	my ($self, $table) = @_;
	my ($by, @columns) = @{ pick(
			(map { [ $_, qw(claimed_at lease_until completed_at) ] } @{ $self->{ages} }),
			[ -1_000_000_000, 'claimed_at' ]) };
	my $interval = "interval '" . seconds($by) . " s'";

	return {
		verb => 'age',
		sql  => "UPDATE $tables[$table] SET " . join(', ', map { "$_ = $_ - $interval" } @columns),
		read => sub {
			return map { { verb => 'age', table => $table, key => $_, by => $by, all => @columns > 1 } } @{ $self->{keys} };
		}
	};
}

# To one: it is spoiled.
sub spoil
{
	my ($self, $table, $key) = @_;
	my ($sql, %changes) = @{ pick(
			[ 'schema_version = 9', schema_version => 9 ],
			[ "response_headers = '[]'", response_headers => '[]' ],
			[ "state = 'COMPLETED', completed_at = NULL", state => 'COMPLETED', completed => 0 ],
			[ "state = 'BROKEN'", state => 'BROKEN' ]) };

	return {
		verb => 'spoil',
		sql  => "UPDATE $tables[$table] SET $sql WHERE effective_key = '$key'",
		read => sub { return { verb => 'spoil', table => $table, key => $key, changes => \%changes } }
	};
}

# A step that is no call.
sub control { my ($verb, $sql) = @_; return { verb => $verb, sql => $sql } }

# What is announced from now on.
sub notify
{
	my $mode = pick(qw(always awaited awaited never));

	return { %{ control('notify', "SET idemkit.notify = $mode") }, mode => $mode };
}

# How often each is asked.
my %weights = (
	claim     => 28,
	claim_many => 8,
	complete  => 14,
	complete_many => 6,
	release   => 6,
	renew     => 6,
	guard     => 4,
	get       => 5,
	stored    => 5,
	subscribe => 5,
	wait_for  => 4,
	vacuum    => 4,
	sweep     => 2);
my %alone = (age => 10, spoil => 3, notify => 2);

# A step that is a call: of a given function, or any, on a given place (table and
# key), or any.
sub random_call
{
	my ($self, $verb, $place) = @_;
	my %chances = (%weights, $self->{alone} ? %alone : ());
	my ($table, $key) = $place ? @$place : $self->random_place;

	$self->{verbs} //= [ map { ($_) x $chances{$_} } sort keys %chances ];
	$verb //= pick(@{ $self->{verbs} });
	return $self->$verb($table, $key) if $verb !~ /_many$|^(subscribe|stored)$/;
	return $self->$verb($table, $key, map { pick(@{ $self->{keys} }) } 1 .. pick(0, 1, 1, 2, 3));
}

# Where records can be: a table and a key, as one word.
sub places
{
	my ($self) = @_;

	return map { my $key = $_; map { "${key}_$_" } 0 .. $#tables } @{ $self->{keys} };
}

sub random_place
{
	my ($self) = @_;

	return (pick(0, 1), pick(@{ $self->{keys} }));
}


# The steps of a transaction, mostly on one place.  It may have a savepoint, which
# is rolled back to or released, or just left.  Of a subscription and a vacuum
# nobody knows whether they locked a record: so nothing follows them.
sub random_transaction
{
	my ($self) = @_;
	my $isolation = pick(@{ $self->{isolations} });
	my $place     = [ $self->random_place ];
	my @verbs     = grep { !/^(subscribe|vacuum|sweep|notify)$/ } map { pick(@{ $self->{verbs} }) } 1 .. pick(2, 3, 4);
	my @steps     = map { $self->random_call($_, pick($place, $place, undef)) } 'claim', @verbs;

	push @steps, $self->random_call(pick(qw(subscribe vacuum)), $place) if pick(0, 0, 1);
	splice @steps, pick(1 .. @steps), 0, control('sleep', 'SELECT pg_sleep(' . seconds(pick(@{ $self->{sleeps} })) . ')');
	if (pick(0, 1))
	{
		my $from = int rand(@steps);

		splice @steps, $from, 0, control('savepoint', 'SAVEPOINT s');
		splice @steps, $from + 1 + int rand(@steps - $from), 0,
		  pick(
			control('rollback_to', 'ROLLBACK TO SAVEPOINT s'),
			control('release_savepoint', 'RELEASE SAVEPOINT s'));
	}
	my $name = "$place->[1]_$place->[0]";
	return (
		{ %{ control('begin', "BEGIN $isolation") }, isolation => $isolation },
		@steps,
		control('lose', "SELECT us(clock_timestamp());\nSELECT token('own.$name') AS lost_$name \\gset"),
		pick(control('commit', 'COMMIT'), control('commit', 'COMMIT'), control('rollback', 'ROLLBACK')));
}

# The steps of a session with so many calls, or a few more.
sub random_steps
{
	my ($self, $calls) = @_;
	my @steps = $self->random_call;

	while ($calls > 0)
	{
		my @more = pick(1 .. 10) > 1 ? $self->random_call : $self->random_transaction;

		$calls -= grep { $_->{read} } @more;
		push @steps, @more;
	}
	return @steps;
}

# A call's verb and, where it is one of a few words, its answer.
sub outcome
{
	my ($call) = @_;

	return $call->{verb} if $call->{verb} !~ /^(claim|complete|release|renew|guard|wait)$/;
	return "$call->{verb} " . ($call->{answer}[0] eq '' ? 'held' : $call->{answer}[0]);
}

# All that a history should have.
sub outcomes
{
	return (
		(map { "claim $_" } qw(new_claimed lease_reclaimed lease_lapsed already_claimed already_completed)),
		(map { ("$_ t", "$_ f") } qw(complete release renew)),
		'guard held', 'guard IK001',
		(map { "wait $_" } qw(completed absent lapsed timeout)),
		qw(get stored mark vacuum));
}

1;
