# The extension by PGXS, and with it the client library and command (client/).
#
#   make, make install     everything, into the directories that PG_CONFIG names
#   make installcheck      regression, isolation and TAP tests against the server
#                          that libpq's environment names, where it is installed

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

CLIENT_TARGETS = all install uninstall clean
.PHONY: $(CLIENT_TARGETS:%=%-client)
$(CLIENT_TARGETS:%=%-client):
	$(MAKE) -C client PG_CONFIG='$(PG_CONFIG)' $(@:%-client=%)

all: all-client
install: install-client
uninstall: uninstall-client
clean: clean-client
