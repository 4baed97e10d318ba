# What the numbers were measured on. Sourced, not run.
# shellcheck shell=bash

# A first number for everything durable: how long one write of a page and its fsync take.
fsync_milliseconds() {
  perl -MTime::HiRes=time -MIO::Handle -e '
    open my $file, ">", "$ENV{SANDBOX}/fsync" or die;
    my ($page, $count, $begin) = ("x" x 8192, 0, time);
    while (time - $begin < 1)
    {
      sysseek $file, 0, 0;
      syswrite $file, $page;
      $file->sync or die;
      $count++;
    }
    printf "%.3f\n", (time - $begin) * 1000 / $count;'
}

# Settings that are not the server's own defaults, and those that matter most anyway.
server_settings() {
  query -F ' = ' -c "
    SELECT name, current_setting(name) FROM pg_settings
     WHERE source = 'configuration file'
       AND name NOT IN ('listen_addresses', 'unix_socket_directories', 'port', 'log_line_prefix', 'TimeZone',
                        'log_timezone', 'dynamic_shared_memory_type', 'default_text_search_config')
           AND name NOT LIKE 'lc\\_%' AND name <> 'DateStyle'
        OR name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_sync_method',
                    'wal_compression', 'commit_delay', 'autovacuum', 'data_checksums', 'jit')
     ORDER BY name"
}

# Prints the description, a Markdown list.
describe_machine() {
  local processor memory
  processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
  memory=$(awk '/^MemTotal:/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)
  cat <<TEXT
* Date: $(date -u '+%Y-%m-%d %H:%M') UTC; source: $source_version
* Processor: ${processor:-$(uname -m)}, $processors available; memory: $memory
* System: $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), kernel $(uname -r)
* Data directory: $(stat -f -c %T "$SANDBOX") file system; a write of 8 KiB with fsync takes $(fsync_milliseconds) ms
* Load average at the start: $(cut -d ' ' -f 1-3 /proc/loadavg)
* Server: $(query -c 'SELECT version()')
* Extension built with: $("$PG_CONFIG" --cc) $("$PG_CONFIG" --cflags)
* pgbench in prepared mode over the Unix socket; at most $processors threads
* Server settings: $(server_settings | paste -s -d ',' | sed 's/,/, /g')
TEXT
  if [ "$with_redis" = yes ]; then
    echo "* Redis: $(redis-server --version | sed 's/Redis server //'); appendonly yes, appendfsync always, save '', auto-aof-rewrite-percentage 0, Unix socket"
  fi
}

# Says what makes a run worthless before it is made.
warn_about_machine() {
  case $(stat -f -c %T "$SANDBOX") in
    tmpfs | ramfs) say "warning: $SANDBOX is in memory: no commit waits for a disk" ;;
  esac
  if awk -v most="$processors" '{ exit !($1 > most / 4) }' /proc/loadavg; then
    say "warning: the machine is busy (load average $(cut -d ' ' -f 1 /proc/loadavg))"
  fi
}
