# A batch keeps its plan, and with it the order of its row locks, when a partition is
# analyzed under it: that invalidates the plan, but not the statement.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use PostgreSQL::Test::Utils ();
use Test::More;

my $node = IdemkitNode->launch('main', "session_preload_libraries = 'auto_explain'", 'auto_explain.log_min_duration = 0',
	'auto_explain.log_nested_statements = on', 'autovacuum = off');
$node->value(q{
	CREATE TABLE parts (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)});

my $batch = q{SELECT count(*) FROM idemkit_complete_many(ARRAY['a', 'b'], ARRAY['x', 'y'], records => 'parts')};

# What the server logs while something runs must tell of the pinned plan alone.
sub check_plans
{
	my ($name, $run) = @_;
	my $before = -s $node->logfile;

	$run->();
	my $log = substr(PostgreSQL::Test::Utils::slurp_file($node->logfile), $before);
	like($log, qr/Nested Loop/, "$name: the batch is joined by a nested loop");
	unlike($log, qr/Seq Scan on parts/, "$name: and not otherwise");
	return;
}

my $session = $node->session;
my $pid     = $session->query_safe('SELECT pg_backend_pid()');
$session->query_safe($batch);
$node->value('ANALYZE parts_0');
check_plans('analyzed before', sub { $session->query_safe($batch) });

# The batch has begun when the news comes.
my $analyst = $node->session;
$analyst->query_safe('BEGIN; LOCK TABLE parts_1');
check_plans('analyzed meanwhile', sub {
	$node->begin_statement($session, $batch);
	$node->wait_until_blocked($pid);
	$analyst->query_safe('ANALYZE parts_1; COMMIT');
	$session->query_safe('');
});
$_->quit foreach $session, $analyst;
done_testing();
