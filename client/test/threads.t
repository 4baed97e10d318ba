# The blocking wait from many threads.
use strict;
use warnings;

use Test::More;

use Programs;

my $node = start_cluster('threads');

run_program('test_shared');

$node->stop;
done_testing();
