// `dashboard_url` of each alert: the panel that draws the series of its expression, with what its labels name selected,
// and the time at which it was last evaluated.
local signals = import '../signals.libsonnet';

// Variable of the page -> label of the alert.
local host = { instance: 'instance' };
local nic = { instance: 'instance', device: 'device' };
local inNetwork = { instance: 'instance', network: 'network' };
local edge = { instance: 'instance', peer: 'peer' };
local job = { workload: 'workload', instance: 'instance' };
// Alerts on flows name the sender first, and what is recorded of them the receiver.
local flow = { workload: 'workload', instance: 'peer' };
// A NIC that is named for what it sends is the peer of the edges that suffer.
local byDirection = { instance: { direction: 'receive', label: 'instance' }, peer: { direction: 'transmit', label: 'instance' } };
local network = { network: 'network' };
// Of what looks back over an hour.
local hours = '2h';

// Alert: page, panel, selection, and what the time range must reach back, if it is more than alertLinkPeriod.
local links = {
  FabricNicDisconnected: ['fleet', 'NICs with faults', inNetwork],
  FabricNicFlapping: ['fleet', 'Disconnects', inNetwork],
  FabricNicFlappingSlowly: ['fleet', 'Disconnects', inNetwork, hours],
  FabricNicUnknown: ['fleet', 'NICs of unknown health', inNetwork],
  FabricNetworkDown: ['fleet', 'Connected share of each network', network],
  FabricWatchdog: ['fleet', 'Alerts firing', {}],

  FabricEdgeLoss: ['paths', 'Lossy edges', edge],
  FabricNicLossy: ['paths', 'Lossy edges', byDirection],
  FabricEdgeSlow: ['paths', 'Edges above their baseline', edge],
  FabricNicSlow: ['paths', 'Edges above their baseline', byDirection],
  FabricNetworkLossy: ['paths', 'Lossy edges', network],
  FabricNetworkSlow: ['paths', 'Edges above their baseline', network],
  FabricPathDown: ['paths', 'Dead paths', host],
  FabricPathLossy: ['paths', 'Loss of the worst path', host],
  FabricMtuBlackHole: ['paths', 'Packets dropped for their size, bytes', edge + network],
  FabricSloMissed: ['paths', 'Edges within the objectives', network, hours],
  FabricFaultLocated: ['paths', 'Suspected components', network],
  FabricNicMiscabled: ['paths', 'Cables at a wrong leaf', { peer: 'peer' }],
  FabricLeafFewerPaths: ['paths', 'Next hops missing', network],

  FabricPathContended: ['contention', 'Contention score of flows', flow],
  FabricJobsContend: ['contention', 'Jobs with contended flows, by network', network],
  FabricIncast: ['contention', 'Slow flows into one NIC', job],

  FabricInBandSlower: ['job', 'In-band delay of the fastest chunks, by flow', flow],
  FabricRailImbalance: ['job', 'Sent by NIC, the least', job],
  FabricBandwidthBelowNormal: ['job', 'Collective bandwidth', { workload: 'workload' }, hours],
  FabricBandwidthBelowFleet: ['job', 'Collective bandwidth', {}],
  FabricLaneDown: ['job', 'Lanes that were out of service', job],
  FabricLaneFailovers: ['job', 'Failovers', job],
  FabricJobOnLastResort: ['job', 'Lanes by state', job],
  FabricStraggler: ['job', 'Waited for, by rank', { workload: 'workload' }],
  FabricCollectiveStalled: ['job', 'Waits and silent processes', { workload: 'workload' }],

  FabricReceiverCongested: ['nic', 'Congestion counters that grew, packets/s', nic],
  FabricCongestionMarks: ['nic', 'Congestion counters that grew, packets/s', nic],
  FabricPaused: ['nic', 'Stopped, share of time', nic],
  FabricPauseStorm: ['nic', 'Stopped, share of time', nic],
  FabricLinkFlapping: ['nic', 'Link drops', nic],
  FabricLinkErrors: ['nic', 'Errors that grew', nic],
  FabricFecUncorrectable: ['nic', 'Errors that grew', nic],
  FabricIbLinkDowned: ['nic', 'Errors that grew', nic],
  FabricRetriesExceeded: ['nic', 'Errors that grew', nic],
  FabricGidMoved: ['nic', 'Errors that grew', nic],
  FabricNicFault: ['nic', 'Errors that grew', nic],
  FabricIbCongested: ['nic', 'Waits for credits, ticks/s', nic],
  FabricNicGone: ['nic', 'NICs gone from the bus', nic],
  FabricPortsMissing: ['nic', 'Ports missing', host],
  FabricPcieDegraded: ['nic', 'PCIe, the slowest', nic],
  FabricGidRoceV1: ['nic', 'GIDs that NCCL would use', nic],
  FabricGidInconsistent: ['nic', 'Hosts without a common GID index', host],
  FabricNicOddOneOut: ['nic', 'NICs unlike the median of their network', nic],

  FabricClockUnsynchronized: ['clock', 'Hosts that had no fleet time', host],
  FabricClockBoundWide: ['clock', 'Error bound', host],
  FabricClockCoordinatorDown: ['clock', 'Hosts that had no coordinator', host],
  FabricClockCoordinatorLost: ['clock', 'Hosts that had no coordinator', {}],
  FabricClockNoQuorum: ['clock', 'Coordinators without a quorum', {}],
  FabricClockSuspect: ['clock', 'Hosts that were suspected', host],
  FabricClockContradicted: ['clock', 'Fleet time found wrong', host],

  FabricRemediationFailed: ['remediation', 'Actions by outcome', {}],
  FabricRemediationBreakerTripped: ['remediation', 'Breakers tripped', {}],
  FabricRemediationNeedsOperator: ['remediation', 'Problems of the receiver', {}],
  FabricRemediationRuleStopped: ['remediation', 'Rules that stopped themselves', {}],
  FabricRemediationStalled: ['remediation', 'Age of what the receiver knows', {}],
  FabricRemediationBlind: ['remediation', 'Age of what the receiver knows', {}],
  FabricRemediationDown: ['remediation', 'Agents without a receiver', {}],
  FabricAgentLost: ['remediation', 'Agents without a receiver', {}],
  FabricRemediationPaused: ['remediation', 'Paused', {}],
  FabricRemediationRefusing: ['remediation', 'Webhook deliveries', {}],
  FabricRemediationUnauthorized: ['remediation', 'Requests without valid credentials', {}],
  FabricRemediationOtherAddress: ['remediation', 'Requests without valid credentials', {}],
  FabricRemediationJournalFailing: ['remediation', 'Journals that could not be written', {}],
  FabricRemediationJournalChanged: ['remediation', 'Seal of the journal', {}, hours],

  FabricHostDown: ['pipeline', 'Daemons that did not answer', host],
  FabricExporterDown: ['pipeline', 'Daemons that did not answer', host],
  FabricScrapesFailing: ['pipeline', 'Daemons that did not answer', host],
  FabricNoData: ['pipeline', 'Daemons that did not answer', {}],
  FabricExporterGone: ['pipeline', 'Daemons, the longest unseen', host],
  FabricExporterEmpty: ['pipeline', 'Targets without metrics of fabricpulse', host],
  FabricExporterOld: ['pipeline', 'Versions', host],
  FabricCollectorFailing: ['pipeline', 'Collectors that failed', host],
  FabricSamplesDropped: ['pipeline', 'Samples left out, by family', host],
  FabricHostNotMember: ['pipeline', 'Hosts that were no members', host],
  FabricFrontEndDisconnected: ['pipeline', 'Front-end network', host],
  FabricPushFailing: ['pipeline', 'Pushes not taken', host],
};

local within(dashboard, title) = [
  panel
  for place in dashboard.panels
  for panel in [place] + std.get(place, 'panels', [])
  if panel.title == title
][0];
local choice(variable, label) = '{{ with $labels.%s }}&var-%s={{ . | urlquery }}{{ end }}' % [label, variable];
local select(variable, label) =
  if std.isString(label) then choice(variable, label)
  else '{{ if eq $labels.direction "%s" }}%s{{ end }}' % [label.direction, choice(variable, label.label)];
{
  prometheusAlerts+:: {
    local config = $._config,
    local seconds = signals(config).seconds,
    // Templates of alerts have no time but by a query, and it is that of the evaluation. The end stays now: panels that show
    // the present would be empty at a time to come, and a range that ends with the first evaluation shows nothing of a fault.
    local time(period) =
      if config.alertLinkPeriod == '' then ''
      else '&from={{ query "1000 * (time() - %d)" | first | value | printf "%%.0f" }}&to=now' % std.max(seconds(config.alertLinkPeriod), seconds(period)),
    local url(page, title, selection, period='1s') =
      local dashboard = $.grafanaDashboards['fabricpulse-%s.json' % page];
      local selected = { [config.clusterLabel]: config.clusterLabel } + selection;
      '%s/d/%s?orgId=1&viewPanel=%d%s%s' % [
        config.grafanaURL,
        dashboard.uid,
        within(dashboard, title).id,
        time(period),
        std.join('', [select(variable, selected[variable]) for variable in std.objectFields(selected)]),
      ],
    groups: [
      group {
        rules: [
          if config.grafanaURL == '' || !std.objectHas(links, rule.alert) then rule
          else rule { annotations+: {
            local link = links[rule.alert],
            dashboard_url: url(link[0], link[1], link[2], if std.length(link) > 3 then link[3] else '1s'),
          } }
          for rule in group.rules
        ],
      }
      for group in super.groups
    ],
  },
}
