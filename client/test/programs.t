# The test programs against a server that is well.
use strict;
use warnings;

use Test::More;

use Programs;

my $node = start_cluster('programs');

run_program('test_unit');
run_program('test_calls');
run_program('test_waits');

$node->stop;
done_testing();
