// Fleet time: without it one-way delays are unknown, and no two hosts' logs can be put in order.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      // They wait for two minutes and more, or tell of a quarter of an hour.
      lib.group(config, 'clock', [
        lib.alert(
          config,
          'FabricClockUnsynchronized',
          'warning',
          'clocksync',
          s.once(s.again('fabricpulse_clock_synchronized', 0), how='group'),
          'Fleet time of a host is not synchronized.',
          'Fleet time on {{ $labels.instance }} is not synchronized: one-way delays from and to this host are unknown. `fabricpulse clocksync status` on it says why.',
          { 'for': config.clockUnsynchronizedFor }
        ),
        lib.alert(
          config,
          'FabricClockBoundWide',
          'warning',
          'clocksync',
          // +Inf: there is no fleet time at all, which is FabricClockUnsynchronized.
          '%s > %g < Inf' % [s.once(s.clockBound), config.clockBoundSeconds],
          'The error bound of fleet time is too wide.',
          'The error bound of fleet time on {{ $labels.instance }} is {{ $value | humanizeDuration }}.',
          { 'for': config.clockBoundWideFor }
        ),
        lib.alert(
          config,
          // A host each, as one notification: Alertmanager groups by name. With a host alone the way to it is at fault.
          'FabricClockCoordinatorDown',
          'warning',
          'clocksync',
          s.once(s.again('fabricpulse_clock_coordinator_up', 0), how='group'),
          'A host reaches no coordinator of fleet time.',
          'No coordinator answers the sidecar of {{ $labels.instance }}: its fleet time is kept by its neighbours only, and its error bound grows.',
          { 'for': config.clockCoordinatorDownFor }
        ),
        lib.alert(
          config,
          'FabricClockNoQuorum',
          'warning',
          'clocksync',
          s.once(s.again('fabricpulse_clocksync_quorum', 0), how='group'),
          'A coordinator and its hosts are a minority partition of the fleet.',
          'The hosts that report to the coordinator {{ $labels.instance }} have no quorum: most hosts of the fleet, or all anchors, are unreachable. They are in holdover, and their error bounds grow.',
          { 'for': config.clockNoQuorumFor }
        ),
        lib.alert(
          config,
          'FabricClockSuspect',
          'warning',
          'clocksync',
          s.once(s.again('fabricpulse_clock_suspect', 1), how='group'),
          'A host is suspected of being faulty: its stamps, or its UTC, contradict the fleet.',
          'The packet stamps of {{ $labels.instance }}, or its UTC if it is an anchor, contradict the rest of the fleet; `fabricpulse clocksync status` on it says which.',
          { 'for': config.clockSuspectFor }
        ),
        lib.alert(
          config,
          'FabricClockContradicted',
          'warning',
          'clocksync',
          s.once('increase(%s[%s])' % [s.series('fabricpulse_clock_contradictions_total'), config.clockContradictedWindow]) + ' > 0',
          'Fleet time of a host was wrong, and has been set anew.',
          'Fleet time of {{ $labels.instance }} contradicted that of its peers: the machine was paused, migrated or suspended, or its oscillator jumped. Stamps of the seconds around it are in doubt; its log says when.'
        ),
      ]) { interval: config.slowInterval },
    ],
  },
}
