# The extension by PGXS, and with it the client library and command (client/).
#
#   make, make install     everything, into the directories that PG_CONFIG names
#   make installcheck      regression, isolation and TAP tests against the server
#                          that libpq's environment names, where it is installed
#   make dist              idemkit-VERSION.zip of the last commit, as PGXN takes it
#
# CLIENT=no leaves the client out, for packages of the extension alone.

EXTENSION = idemkit
MODULE_big = idemkit
DATA = idemkit--1.0.sql
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
PGFILEDESC = "idemkit - idempotency keys inside the database"

REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
REGRESS_OPTS = --encoding=UTF8 --no-locale
ISOLATION = $(patsubst specs/%.spec,%,$(sort $(wildcard specs/*.spec)))
TAP_TESTS ?= 1

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

$(OBJS): src/idemkit.h src/compat.h

ifneq ($(CLIENT),no)
CLIENT_TARGETS = all install uninstall clean
.PHONY: $(CLIENT_TARGETS:%=%-client)
$(CLIENT_TARGETS:%=%-client):
	$(MAKE) -C client PG_CONFIG='$(PG_CONFIG)' $(@:%-client=%)

all: all-client
install: install-client
uninstall: uninstall-client
clean: clean-client
endif

# The same commit gives the same bytes, whoever makes it: git takes the times from the
# commit, and zip the time zone from here.
DISTVERSION = $(shell git show HEAD:META.json | sed -n 's/^  "version": "\(.*\)",$$/\1/p')
DISTDIR ?= .
.PHONY: dist
dist:
	TZ=UTC git archive --format=zip --prefix=idemkit-$(DISTVERSION)/ \
		-o $(DISTDIR)/idemkit-$(DISTVERSION).zip HEAD
