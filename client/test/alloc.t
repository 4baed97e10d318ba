# Every request for memory fails once.
use strict;
use warnings;

use Test::More;

use Programs;

my $node = start_cluster('alloc');

run_program('test_alloc');

$node->stop;
done_testing();
