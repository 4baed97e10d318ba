# The sweep as a job of pg_cron, scheduled with the lines of the documentation.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $library = IdemkitNode::pg_config('--pkglibdir') . '/pg_cron.so';
plan skip_all => "unavailable: pg_cron is not installed for this server" unless -e $library;

# The block that the documentation has for it.
my $document = PostgreSQL::Test::Utils::slurp_file("$FindBin::RealBin/../docs/operations.md");
my ($lines) = $document =~ /^```sql needs=pg_cron\n(.*?)^```$/ms
  or die 'docs/operations.md says nothing about pg_cron';

# With background workers, and with connections of its own as it comes.
foreach my $mode ('background workers', 'connections')
{
	my $name = $mode =~ s/ .*//r;
	my $node = IdemkitNode->prepare($name,
		"shared_preload_libraries = 'pg_cron'",
		"cron.database_name = 'postgres'",
		"cron.use_background_workers = " . ($mode eq 'connections' ? 'off' : 'on'));
	$node->append_conf('postgresql.conf', "cron.host = '" . $node->host . "'");
	$node->start;
	$node->value('CREATE EXTENSION idemkit');
	$node->value($lines);
	is($node->value(q{SELECT command FROM cron.job WHERE command ~ 'idemkit'}),
		'CALL idemkit_sweep()', "$mode: the documentation's lines schedule the sweep");

	# The schedule is in minutes; a start of the server is something to wait for.
	$node->value(q{
		SELECT idemkit_claim('live');
		SELECT count(idemkit_claim('over ' || i)) FROM generate_series(1, 12000) i;
		UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 h' WHERE effective_key <> 'live';
		UPDATE cron.job SET schedule = '@reboot' WHERE command ~ 'idemkit'});
	$node->restart;
	ok($node->poll_query_until('postgres',
			q{SELECT status NOT IN ('starting', 'running', 'connecting', 'sending') FROM cron.job_run_details WHERE command ~ 'idemkit'}),
		"$mode: the job has run");
	is($node->value(q{SELECT DISTINCT status FROM cron.job_run_details WHERE command ~ 'idemkit'}),
		'succeeded', "$mode: and succeeded")
	  or diag($node->value('SELECT * FROM cron.job_run_details'));
	is($node->value('SELECT effective_key FROM idemkit_records'), 'live', "$mode: what had expired is gone, what is live is not");
	$node->stop;
	$node->log_is_clean;
}

done_testing();
