# What monitoring/ has is true: the exporter exports what the dashboard and the
# alerts name, with the numbers of idemkit_stats, for an ordinary role; and the
# alerts are raised by what they are for.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;

use Documents;
use IdemkitNode;
use Test::More;

my %file = map { $_ => Documents::text("monitoring/$_") } qw(alerts.yml alerts_test.yml dashboard.json);

# The command of that name, or one of those, on the PATH.
sub installed
{
	my @found = grep { -x } map { my $name = $_; map { "$_/$name" } split(/:/, $ENV{PATH}) } @_;

	return $found[0];
}

# The part of the documentation that has that heading.
sub section
{
	my ($heading) = @_;

	return Documents::section('docs/operations.md', $heading);
}

#
# The alerts, as Prometheus has it
#
my $promtool = installed('promtool');
my @alerts   = $file{'alerts.yml'} =~ /^ +- alert: (\w+)$/mg;
my @raised   = $file{'alerts_test.yml'} =~ /^ +alertname: (\w+)\n +exp_alerts:$/mg;
my @silent   = $file{'alerts_test.yml'} =~ /\{eval_time: \w+, alertname: (\w+)\}/g;

# Each of a list once, in order.
sub distinct
{
	my %seen;

	return join(' ', sort grep { !$seen{$_}++ } @_);
}

is(distinct(@raised), distinct(@alerts), 'there is a test for the raising of each alert');
is(distinct(@silent), distinct(@alerts), 'and one for its silence');
is(distinct(section('What to alert on') =~ /`(Idemkit\w+)`/g),
	distinct(@alerts), 'docs/operations.md says what each alert means');
SKIP:
{
	skip('unavailable: promtool', 2) if !defined $promtool;
	PostgreSQL::Test::Utils::command_ok([ $promtool, 'check', 'rules', "$Documents::top/monitoring/alerts.yml" ], 'the alerts are rules for Prometheus');
	PostgreSQL::Test::Utils::command_ok([ $promtool, 'test', 'rules', "$Documents::top/monitoring/alerts_test.yml" ],
		'each is raised by what it is for, and not before');
}

#
# The dashboard, as far as it can be seen without Grafana
#
my $dashboard   = decode_json($file{'dashboard.json'});
my @panels      = @{ $dashboard->{panels} };
my @variables   = @{ $dashboard->{templating}{list} };
my @expressions = map { $_->{expr} } map { @{ $_->{targets} } } @panels;
my @queries     = (@expressions, map { $_->{query}{query} } grep { $_->{type} eq 'query' } @variables);

cmp_ok($dashboard->{schemaVersion}, '>=', 39, 'a dashboard of this age');
is(distinct(map { $_->{id} } @panels), join(' ', sort 1 .. @panels), 'each panel has a number of its own');
is(join(' ', grep { !$_ } map { length($_->{title}) * length($_->{description}) } @panels),
	'', 'each panel has a title and says what it shows');
is(distinct($file{'dashboard.json'} =~ /"uid": "([^"]*)"/g),
	'${datasource} idemkit', 'each query goes to the data source that is chosen');
is(distinct(map { /\$(\w+)/g } @queries, '$datasource'),
	distinct(map { $_->{name} } @variables), 'the variables are those that the queries use');

# Whether two panels lie on each other, or one beyond the edge.
sub misplaced
{
	my @places = map { $_->{gridPos} } @panels;
	my @bad    = grep { $_->{x} + $_->{w} > 24 } @places;

	foreach my $one (0 .. $#places)
	{
		foreach my $other ($one + 1 .. $#places)
		{
			my ($p, $q) = @places[ $one, $other ];

			push @bad, $p
			  if $p->{x} < $q->{x} + $q->{w} && $q->{x} < $p->{x} + $p->{w}
			  && $p->{y} < $q->{y} + $q->{h} && $q->{y} < $p->{y} + $p->{h};
		}
	}
	return encode_json(\@bad);
}

is(misplaced(), '[]', 'no panel lies on another');
SKIP:
{
	skip('unavailable: promtool', 1) if !defined $promtool;
	my $rules = PostgreSQL::Test::Utils::tempdir() . '/dashboard.yml';
	my $rule  = 0;

	PostgreSQL::Test::Utils::append_to_file($rules, encode_json(
			{ groups => [ { name => 'dashboard', rules => [ map { { record => 'panel:' . $rule++, expr => s/\$\w+/.*/gr } } @expressions ] } ] }));
	PostgreSQL::Test::Utils::command_ok([ $promtool, 'check', 'rules', $rules ], 'the queries of the panels are PromQL');
}

#
# The exporter, started as the documentation says, as an ordinary role
#
my $exporter = installed('prometheus-postgres-exporter', 'postgres_exporter');
if (!defined $exporter)
{
	SKIP: { skip('unavailable: postgres_exporter', 1) }
	done_testing();
	exit;
}

my $node = IdemkitNode->launch('main');
my ($roles)   = section('What to watch') =~ /^```sql\n(.*?)^```$/ms or die 'no SQL for the role of the exporter';
my ($command) = section('What to watch') =~ /^```sh [^\n]*\n(.*?)^```$/ms or die 'no command that starts the exporter';
$node->value($roles);

# Tables to be seen, in the numbers that are expected, and others.
$node->value(q{
	CREATE SCHEMA app;
	GRANT USAGE ON SCHEMA app TO monitor;
	SET search_path = app, public;
	SELECT idemkit_create_table('jobs');
	CREATE TABLE parts (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0);

	CREATE TABLE copied AS TABLE idemkit_records;
	CREATE TABLE copied_too (LIKE idemkit_records);
	CREATE TABLE incomplete (LIKE idemkit_records INCLUDING ALL);
	ALTER TABLE incomplete DROP COLUMN attempts;
	CREATE VIEW seen AS TABLE idemkit_records;
	CREATE TABLE keys (effective_key text PRIMARY KEY);
	GRANT SELECT ON ALL TABLES IN SCHEMA app TO monitor;

	SELECT idemkit_create_table('secret');
	CREATE SCHEMA closed;
	CREATE TABLE closed.records (LIKE idemkit_records INCLUDING ALL);
	GRANT SELECT ON closed.records TO monitor});
$node->value(q{
	SELECT idemkit_claim('live-' || i, lease_ttl_seconds => 3600) FROM generate_series(1, 3) i;
	SELECT idemkit_claim('lapsed-' || i) FROM generate_series(1, 2) i;
	SELECT idemkit_complete('done-' || i, our_claim_token) FROM generate_series(1, 4) i, idemkit_claim('done-' || i);
	SELECT idemkit_complete('over', our_claim_token) FROM idemkit_claim('over');
	UPDATE idemkit_records SET claimed_at = clock_timestamp() - interval '5000 s' WHERE effective_key = 'live-1';
	UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '6000 s', attempts = 7 WHERE effective_key = 'lapsed-1';
	UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 s' WHERE effective_key = 'lapsed-2';
	UPDATE idemkit_records SET completed_at = clock_timestamp() - interval '7000 s' WHERE effective_key = 'done-1';
	UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '8000 s' WHERE effective_key = 'over';
	SELECT idemkit_claim('part', records => 'app.parts')});
# In a session of its own, so that what is counted of the one before is there already.
$node->value('VACUUM idemkit_records');

# An exporter may show the rows that came before an error.
my ($query) = Documents::text('monitoring/postgres_exporter.yaml') =~ /^  query: \|\n(.*?)^  \w/ms;
is($node->sqlstate($query, 'monitor'), '00000', 'the query of the exporter ends without an error');

my $port = PostgreSQL::Test::Cluster::get_free_port();
$command =~ s/^prometheus-postgres-exporter /exec $exporter /m;
$command =~ s/host=\S+/host=@{[$node->host]} port=@{[$node->port]}/;
$command =~ s/dbname=\w+/dbname=postgres/;
$command =~ s/127\.0\.0\.1:\d+/127.0.0.1:$port/ or die 'the exporter would not listen here';
my $log = '';
my $run = IPC::Run::start([ 'bash', '-eu', '-c', "cd '$Documents::top'\n$command" ], '<', \'', '>', \$log, '2>&1');
END
{
	local $?;
	$run->kill_kill if defined $run;
}

# Its metrics: name, then labels as they are written, to value.
my $page;
$node->wait_until('the exporter answers', sub {
		$run->pump_nb;
		return 1 if !$run->pumpable;
		$page = HTTP::Tiny->new->get("http://127.0.0.1:$port/metrics");
		return $page->{success} && $page->{content} =~ /^idemkit_/m;
	});
$page->{success} or BAIL_OUT("the exporter ended: $log");
my %metrics;
foreach my $line (grep { !/^#/ } split(/\n/, $page->{content}))
{
	my ($name, $labels, $value) = $line =~ /^(\w+)(?:\{(.*)\})? (\S+)/ or die $line;
	my ($database) = ($labels // '') =~ /\bdatabase="([^"]*)"/;
	my ($records)  = ($labels // '') =~ /\brecords="([^"]*)"/;

	$metrics{$name}{ $records // '' } = $value;
	is($database, 'postgres', "$name: its database") if $name eq 'idemkit_live_claims';
}
my @exported = grep { /^idemkit_/ } keys %metrics;

is($metrics{pg_exporter_user_queries_load_error}{''}, 0, 'the exporter has no complaint about the queries')
  or diag($log);
is(distinct(map { keys %{ $metrics{$_} } } @exported),
	'app.jobs app.parts public.idemkit_records', 'the tables whose numbers are exported');
is(distinct(@exported),
	distinct(map { /^oldest/ ? "idemkit_${_}_seconds" : "idemkit_$_" } split(/\n/, $node->value(
				q{SELECT attname FROM pg_attribute WHERE attrelid = 'idemkit_stats'::regclass AND attnum > 0}))),
	'every column of idemkit_stats is exported');

# A metric of the extension's own table, in units of a thousand for what moves.
sub own
{
	my ($name) = @_;
	my $value = $metrics{"idemkit_$name"}{'public.idemkit_records'};

	return $name =~ /_seconds$/ ? int($value / 1000) : $value + 0;
}

my %expected = (
	live_claims => 3, lapsed_claims => 2, live_completions => 4, expired_completions => 1,
	oldest_live_claim_seconds => 5, oldest_lapsed_claim_seconds => 6,
	oldest_live_completion_seconds => 7, oldest_expired_completion_seconds => 8,
	highest_attempts => 7, notification_queue_usage => 0, sampled_fraction => 1);

is(own($_), $expected{$_}, "the exported $_") foreach sort keys %expected;
is(own($_), $node->value("SELECT $_ FROM idemkit_stats()"), "the exported $_")
  foreach qw(table_bytes index_bytes toast_bytes dead_tuples);
is($metrics{idemkit_live_claims}{'app.parts'}, 1, 'a partitioned table is counted whole');
is($metrics{idemkit_oldest_live_claim_seconds}{'app.jobs'} . $metrics{idemkit_highest_attempts}{'app.jobs'},
	'00', 'and an empty one has ages of 0');

#
# What is named is exported
#
foreach my $path (sort keys %file)
{
	my @named = ($path =~ /json$/ ? join(' ', @queries) : $file{$path}) =~ /\b(idemkit_\w+)(?=[\s{(),]|$)/mg;
	my %is = map { $_ => 1 } @exported;

	@named = grep { $_ ne 'idemkit_records' } @named;
	cmp_ok(scalar @named, '>', 5, "$path names metrics");
	is(distinct(grep { !$is{$_} } @named), '', "$path: every one is exported");
	is(distinct(grep { my $name = $_; !grep { $_ eq $name } @named } @exported),
		'', "$path: every exported one is shown") if $path =~ /json$/;
}

$node->log_is_clean;
done_testing();
