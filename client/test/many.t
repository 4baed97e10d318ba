# Ten thousand waits on one connection.
use strict;
use warnings;

use Test::More;

use Programs;

# Commits that reach the disk, as they do where the latency matters.
my $node = start_cluster('many', 'fsync = on');

run_program('test_many');

$node->stop;
done_testing();
