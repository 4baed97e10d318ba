# What the drivers make of the functions: types, composites, bodies of any bytes,
# NULL, arrays, parameters of unknown type, statements prepared on the server, errors,
# transactions, CALL. The checks are in t/drivers/, one program for each driver.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Drivers;
use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main');

Drivers::lead_to($node->host, $node->port);
Drivers::check_psycopg('');
Drivers::check_psycopg('prepared at once, binary results', PREPARE => 0, BINARY => 1);
Drivers::check_psycopg('never prepared', PREPARE => 'none');
Drivers::check_asyncpg('');
Drivers::check_asyncpg('without its cache', PREPARE => 'none');
Drivers::check_pg('');
Drivers::check_pg('all prepared', PREPARE => 'all');

$node->log_is_clean;
done_testing();
