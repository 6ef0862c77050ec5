// Fleet time: without it one-way delays are unknown, and no two hosts' logs can be put in order.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      lib.group(config, 'clock', [
        lib.alert(
          config,
          'FabricClockUnsynchronized',
          'warning',
          'clocksync',
          s.clockSynchronized + ' == 0',
          'A host has no fleet time.',
          'The clock {{ $labels.clock }} of {{ $labels.instance }} is not synchronised to fleet time; one-way delays from and to this host are unknown.',
          { 'for': config.clockUnsynchronizedFor }
        ),
        lib.alert(
          config,
          'FabricClockBoundWide',
          'warning',
          'clocksync',
          // +Inf: there is no fleet time at all, which is FabricClockUnsynchronized.
          '%s > %g < Inf' % [s.clockBound, config.clockBoundSeconds],
          'The error bound of fleet time is too wide.',
          'Fleet time on {{ $labels.instance }} (clock {{ $labels.clock }}) may be wrong by {{ $value | humanizeDuration }}.',
          { 'for': config.clockBoundWideFor }
        ),
        lib.alert(
          config,
          'FabricClockSuspect',
          'warning',
          'clocksync',
          s.last('fabricpulse_clock_suspect') + ' == 1',
          'The stamps of a host, or its UTC, contradict the fleet.',
          'What {{ $labels.instance }} stamps, or its UTC if it is an anchor, contradicts the rest of the fleet; `fabricpulse clocksync status` on it says which.',
          { 'for': config.clockSuspectFor }
        ),
      ]),
    ],
  },
}
