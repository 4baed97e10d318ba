# Ten thousand waits on one connection.
use strict;
use warnings;

use Test::More;

use Programs;

my $node = start_cluster('many');

run_program('test_many');

$node->stop;
done_testing();
