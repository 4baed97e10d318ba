# The tour of the examples, in every language but C (client/test/examples.t): it
# keeps its promises, again and again in one database, and prints what its document
# shows.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Documents;
use Drivers;
use IdemkitNode;
use Test::More;

my $node     = IdemkitNode->launch('main');
my $examples = "$FindBin::RealBin/../examples";
my @tours    = (
	[ 'python-psycopg3/tour.py', 'psycopg' ],
	[ 'python-asyncpg/tour.py',  'asyncpg' ],
	['node/tour.js'],
	['psql/tour.sql']);

Drivers::lead_to($node->host, $node->port);
foreach my $tour (@tours)
{
	my ($file, @modules) = @$tour;
	my @command = Drivers::command("$examples/$file", @modules);

  SKIP:
	{
		skip("unavailable: the driver of $file", 3) if !@command;
		Drivers::prints("$file prints what it should", Drivers::tour_output(), @command);
		Drivers::prints("$file does so again",         Drivers::tour_output(), @command);

		# With a completion that stores nothing every tour must fail.
		$node->value(q{BEGIN; CREATE SCHEMA broken; ALTER DATABASE postgres SET search_path = broken, public;
			CREATE FUNCTION broken.idemkit_complete(text, text, integer DEFAULT NULL, jsonb DEFAULT NULL,
			response_body bytea DEFAULT NULL, expires_after_seconds float8 DEFAULT 1, records regclass DEFAULT NULL)
			RETURNS boolean LANGUAGE sql AS 'SELECT true'; COMMIT});
		my ($status, undef, $err) = Documents::run_command($Documents::top, @command);
		like("$status $err", qr/^[13] .*broken promise: a claim is completed once/s,
			"$file notices a promise that is not kept");
		$node->value('ALTER DATABASE postgres RESET search_path; DROP SCHEMA broken CASCADE');
	}
}

$node->log_is_clean;
done_testing();
