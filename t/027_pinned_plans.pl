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

my $session = $node->session;
my $batch   = q{SELECT count(*) FROM idemkit_complete_many(ARRAY['a', 'b'], ARRAY['x', 'y'], records => 'parts')};

$session->query_safe($batch);
$node->value('ANALYZE parts_0');
my $before = -s $node->logfile;
$session->query_safe($batch);
$session->quit;

my $log = substr(PostgreSQL::Test::Utils::slurp_file($node->logfile), $before);
like($log, qr/Nested Loop/, 'the batch is joined by a nested loop');
unlike($log, qr/Hash Join|Merge Join|Seq Scan/, 'and not otherwise');
done_testing();
