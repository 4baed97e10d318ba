# The examples do what they say, and an installed library is found by pkg-config.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../../t/lib";

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

use Drivers;
use Programs;

my $node = start_cluster('examples');

sub run_example
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	$command[0] = build_path("examples/$command[0]");
	IPC::Run::run([ under(), @command ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(60));
	return ($? >> 8, $out, $err);
}

# tour
{
	my ($status, $out, $err) = run_example('tour');
	is("status $status\n$err$out", "status 0\n" . Drivers::tour_output(), 'tour: what it prints');
}

# charge
{
	my ($status, $first, $err) = run_example('charge', '42', '9.90');
	is($status, 0, 'charge: exit status');
	is($first, qq({"order": "42", "charged": "9.90"}\n), 'charge: the receipt');
	is($err, "charging 9.90 for order 42\n", 'charge: the work is done');
	($status, my $second, $err) = run_example('charge', '42', '9.90');
	is($status, 0, 'charge again: exit status');
	is($second, $first, 'charge again: the same receipt');
	is($err, '', 'charge again: the work is not done again');
	($status, $second, $err) = run_example('charge', '42', '8.00');
	is($status, 1, 'charge another amount: exit status');
	like($err, qr/another amount/, 'charge another amount: refused');
	$node->safe_psql('postgres', "SELECT idemkit_claim('charge:43', '1')");
	($status, $second, $err) = run_example('charge', '43', '1');
	is($status, 1, 'charge in flight: exit status');
	like($err, qr/is being charged/, 'charge in flight: not charged');
}

# wait_poll, wait_libev
for my $example ('wait_poll', 'wait_libev')
{
  SKIP:
	{
		skip 'unavailable: built without libev', 2 unless -x build_path("examples/$example");
		my $token = $node->safe_psql('postgres',
			"SELECT our_claim_token FROM idemkit_claim('$example', lease_ttl_seconds => 600)");
		my ($out, $err) = ('', '');
		my $run = IPC::Run::start(
			[ under(), build_path("examples/$example"), '30', 'nothing', $example ],
			'<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(60));
		ok( $node->poll_query_until('postgres',
				"SELECT awaited FROM idemkit_records WHERE effective_key = '$example'"),
			"$example: waits");
		$node->safe_psql('postgres',
			"SELECT idemkit_complete('$example', '$token', response_body => '12345')");
		$run->finish;
		is($run->result(0), 0, "$example: exit status");
		is($out, "nothing: absent, 0 bytes \n$example: completed, 5 bytes \n",
			"$example: what it prints");
		is($err, '', "$example: nothing on standard error");
	}
}

# Installed, found by pkg-config, linked, taken away.
{
	my $root = PostgreSQL::Test::Utils::tempdir();
	my $program = "$root/charge";
	my $make = $ENV{IDEMKIT_MAKE};

	is(system("$make install DESTDIR= prefix=$root/usr >$root/log 2>&1"), 0, 'make install');
	note PostgreSQL::Test::Utils::slurp_file("$root/log");
	local $ENV{PKG_CONFIG_PATH} = join ':', "$root/usr/lib/pkgconfig",
	  $ENV{PKG_CONFIG_PATH} // ();
	my $flags = `pkg-config --cflags --libs libidemkit`;
	is($?, 0, 'pkg-config finds the library');
	chomp $flags;
	is(system("cc $ENV{IDEMKIT_CFLAGS} -o $program ../examples/c/charge.c $flags"), 0,
		'a program is built with it');
	local $ENV{LD_LIBRARY_PATH} = "$root/usr/lib";
	is(`$program 42 9.90`, qq({"order": "42", "charged": "9.90"}\n), 'and runs with it');
	like(`ldd $program`, qr/libidemkit\.so\.1 => \Q$root\E/, 'by its soname');
	is(system("$make uninstall DESTDIR= prefix=$root/usr >$root/log 2>&1"), 0, 'make uninstall');
	is(`find $root/usr -type f -o -type l`, '', 'leaves nothing');
}

$node->stop;
done_testing();
