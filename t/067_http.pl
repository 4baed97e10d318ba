# The web service of the examples, under real and concurrent requests: one payment for
# each Idempotency-Key, 400, 409, 422 and replays as the draft has them, failures, lost
# and renewed claims. The checks are in t/drivers/http_checks.py.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Drivers;
use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main');
my @checks = qw(header replay payload in_flight race scope declined failure renewal lost dead_owner program);

Drivers::lead_to($node->host, $node->port);
Drivers::check('http_checks.py', ['psycopg'], \@checks, '');

$node->log_is_clean;
done_testing();
