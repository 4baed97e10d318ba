# A file system without room, that of the tables and then that of the WAL: calls end
# with an error and have changed nothing, everything that clients were told still
# holds, and all works again when there is room.
#
# The small file system is a tmpfs that only this program and its servers see, in a
# mount namespace of their own; where there are no namespaces for ordinary users, as
# in many containers, /dev/shm, if it is as small as it is there.
#
# IDEMKIT_SEED=N repeats the scripts of the clients and how much room is left,
# IDEMKIT_SIZE=N is how often each file system fills up under load.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Path qw(make_path);

# Runs this program again in a mount namespace with a small file system, if it can;
# before anything is printed.
BEGIN
{
	my $directory = ($ENV{TESTDIR} // '.') . '/tmp_check/small';

	# As root of the namespace, which may mount; then as who we are, which a server
	# insists on.
	my @inside = (
		'unshare', '-Urm', 'sh', '-c',
		'mount -t tmpfs -o size=40m,mode=700 none "$0" && exec unshare -U --map-user="$1" --map-group="$2" "$3" "$4"',
		$directory, $>, (split(/ /, $)))[0]);

	make_path($directory) if !$^C;
	if (!$^C && !exists $ENV{IDEMKIT_SMALL_DISK} && system('sh', '-c', '"$@" 2>/dev/null', 'sh', @inside, 'test', '.') == 0)
	{
		$ENV{IDEMKIT_SMALL_DISK} = $directory;
		exec @inside, $^X, $0;
	}
}

use File::Temp qw(tempdir);
use IdemkitNode;
use Ledger;
use List::Util qw(min);
use Load;
use Test::More;

sub size_of { return (split(' ', `df -B1 --output=size '$_[0]' | tail -n 1`))[0] }

my $small = $ENV{IDEMKIT_SMALL_DISK};
$small //= tempdir(DIR => '/dev/shm', CLEANUP => 1) if -w '/dev/shm' && size_of('/dev/shm') <= 128 * 1024 * 1024;
plan skip_all => 'unavailable: neither user namespaces nor a small /dev/shm' if !defined $small;

my $seed   = IdemkitNode::seed();
my $rounds = IdemkitNode::size(1, 10);
my $ledger;
my ($violations, $full) = (0, 0);

# Takes all room but some, and gives it back.
sub take_room
{
	my ($leave) = @_;
	my $piece   = "\1" x 65536;
	my $written = 0;

	open(my $ballast, '>', "$small/ballast") or die "ballast: $!";
	while (defined(my $bytes = syswrite($ballast, $piece))) { $written += $bytes; last if $bytes < length($piece) }
	truncate($ballast, $written > $leave ? $written - $leave : 0) or die "ballast: $!";
	close($ballast);
	return;
}

sub give_room { unlink "$small/ballast"; return }

# Clients that go on until they run into an error or have done all; then all they
# were told must hold.
sub check_load
{
	my ($node, $name, $expected, @texts) = @_;
	my @complaints = map { s/^psql:\S+ //r } grep { !/$expected/ } @texts;
	my @broken  = ($ledger->broken_promises($node), @complaints);
	my $unsound = $node->unsound_storage(qw(idemkit_records brief effects));

	is(scalar @broken, 0, "$name: everything that a client was told still holds")
	  or diag(join("\n", "IDEMKIT_SEED=$seed", @broken[ 0 .. min(19, $#broken) ]));
	is($unsound, '', "$name: amcheck finds nothing");
	is($node->value("SELECT result FROM idemkit_claim('$name') UNION ALL SELECT idemkit_vacuum()::text FROM idemkit_stats()") =~ /^new_claimed/,
		1, "$name: all works again");
	# The next round's promises know nothing of it.
	$node->value("DELETE FROM idemkit_records WHERE effective_key = '$name'");
	$violations += @broken + ($unsound ne '');
	return;
}

### Where the tables are.

my $node = IdemkitNode->launch('main', 'dynamic_shared_memory_type = mmap', "idemkit.notify = 'awaited'");
plan skip_all => 'unavailable: amcheck' if !$node->value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
mkdir "$small/tables";
$node->value('CREATE EXTENSION amcheck');
Load::prepare($node);
$node->value(qq{
	CREATE FUNCTION noise(n int) RETURNS text LANGUAGE sql VOLATILE AS
		'SELECT string_agg(md5(random()::text), \$\$\$\$) FROM generate_series(1, n / 32)';
	ALTER TABLE effects SET TABLESPACE pg_default});
$node->value("CREATE TABLESPACE small LOCATION '$small/tables'");
$node->value("ALTER TABLE $_ SET TABLESPACE small; ALTER INDEX ${_}_pkey SET TABLESPACE small; ALTER INDEX ${_}_lease_until_idx SET TABLESPACE small")
  foreach qw(idemkit_records brief);

my $session = $node->session;
my $stored  = q{SELECT count(*), md5(string_agg(r::text, '|' ORDER BY effective_key)) FROM idemkit_records r};

# Repeats a call, with N for its number, until the disk is full.  Then it must have
# changed nothing, and work as soon as there is room.
sub run_full
{
	my ($name, $setup, $call) = @_;
	my $number  = 0;
	my $outcome = '00000';
	my $before;

	$node->value("TRUNCATE idemkit_records; $setup");
	take_room(200_000);
	while ($outcome eq '00000' && $number < 500)
	{
		$before  = $node->value($stored);
		$outcome = $node->session_sqlstate($session, $call =~ s/N\b/++$number/er . ' \g /dev/null');
	}
	is($outcome, '53100', "$name: the disk is full at call $number");
	is($node->value($stored), $before, "$name: nothing is changed");
	give_room();
	$full++;
	is($node->session_sqlstate($session, $call =~ s/N\b/$number/r . ' \g /dev/null'), '00000', "$name: the session goes on when there is room");
	isnt($node->value($stored), $before, "$name: and now it is done");
	return;
}

my $claims = q{SELECT idemkit_claim('k' || i, lease_ttl_seconds => LEASE) FROM generate_series(1, 500) i};
my $token  = q{(SELECT claim_token FROM idemkit_records WHERE effective_key = 'kN')};
run_full('claim', '', q{SELECT idemkit_claim('k' || N, noise(20000))});
run_full('claim that takes over', $claims =~ s/LEASE/0.000001/r, q{SELECT idemkit_claim('k' || N, noise(20000))});
run_full('complete', $claims =~ s/LEASE/600/r,
	q{SELECT idemkit_complete(effective_key, claim_token, 200, '{}', noise(20000)::bytea) FROM idemkit_records WHERE effective_key = 'k' || N});
run_full('claim_many', '',
	q{SELECT count(our_claim_token) FROM idemkit_claim_many(ARRAY(SELECT N || '-' || i FROM generate_series(1, 10) i),
		ARRAY(SELECT noise(3000 + i * 0) FROM generate_series(1, 10) i))} =~ s/\n\s*/ /gr);
run_full('complete_many', $claims =~ s/LEASE/600/r,
	q{SELECT count(d) FROM (SELECT array_agg(effective_key) k, array_agg(claim_token) t FROM (SELECT * FROM idemkit_records
		WHERE state = 'CLAIMED' ORDER BY 1 LIMIT 5) r, (SELECT N) n) r,
		LATERAL idemkit_complete_many(k, t, NULL, NULL, ARRAY(SELECT noise(5000 + i * 0)::bytea FROM generate_series(1, 5) i)) d} =~ s/\n\s*/ /gr);

# What only removes needs no room.
$node->value('TRUNCATE idemkit_records; ' . $claims =~ s/LEASE/0.000001/r);
take_room(0);
is($node->value('SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 200)'), 200, 'vacuum works on a full disk');
is($node->value('SELECT idemkit_vacuum(3600, 0, 100)'), 100, 'so does vacuum by age');
is($node->value('CALL idemkit_sweep(0, 50, 0)'), 200, 'and sweep');
give_room();
$session->quit;

$ledger = Ledger->new;
foreach my $round (1 .. $rounds)
{
	take_room(100_000 + rand(1_000_000));
	my $load = Load->start($node, $round, 16, 300);

	$ledger->read_client($_) foreach $load->finish;
	my @complaints = $load->complaints;
	give_room();
	cmp_ok(scalar(grep { /ERROR:  53100/ } @complaints), '>', 0, "tables, round $round: clients were told that the disk is full");
	$full++;
	check_load($node, "tables, round $round", qr/ERROR:  53100|^DETAIL|^HINT/, @complaints);
}
$node->log_is_clean;
$node->stop;

### Where the WAL is.  A server that cannot write it ends.  What the rounds before have
### written is not recycled, or a round would find more and more room in it.

$node = IdemkitNode->prepare('wal', 'dynamic_shared_memory_type = mmap', 'checkpoint_timeout = 1h', 'max_wal_size = 1GB', 'wal_recycle = off');
$node->command_ok([ 'pg_resetwal', '--wal-segsize=1', '-D', $node->data_dir ], 'a WAL of small segments');
$node->command_ok([ 'cp', '-a', $node->data_dir . '/pg_wal', "$small/wal" ], 'on the small file system');
PostgreSQL::Test::Utils::system_or_bail('rm', '-r', $node->data_dir . '/pg_wal');
symlink "$small/wal", $node->data_dir . '/pg_wal' or die $!;
$node->start;
$node->value($_) foreach 'CREATE EXTENSION idemkit', 'CREATE EXTENSION amcheck';
Load::prepare($node);

$ledger = Ledger->new;
foreach my $round (1 .. $rounds)
{
	$node->value('CHECKPOINT');
	take_room(2_000_000 + rand(2_000_000));
	my $load = Load->start($node, $round, 16, 400);

	$ledger->read_client($_) foreach $load->finish;
	$node->wait_until('the server has ended', sub { !-e $node->data_dir . '/postmaster.pid' });
	$node->_update_pid(-1);
	give_room();
	$full++;
	$node->start;
	check_load($node, "WAL, round $round", qr/PANIC:  53100/, $load->complaints);
}
$node->log_is_clean(qr/PANIC:.*No space left on device|terminated by signal 6/);
$node->stop;

IdemkitNode::report("the disk was full $full times, $violations violations");
done_testing();
