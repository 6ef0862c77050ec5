// Every knob of the mixin. Change them from outside, never here:
//   (import 'mixin.libsonnet') + { _config+:: { flapThreshold: 5 } }
// or, without jsonnet: fabricpulse rules render --set flapThreshold=5 --output DIR
{
  _config+:: {
    // What is put between the braces of each series, besides what a rule or panel itself needs. Narrow it when one
    // Prometheus holds several fleets: 'cluster="gpu-a"'. Empty takes all fabricpulse series.
    selector: '',
    // The jobs that scrape fabricpulse, for the alert on an exporter that does not answer.
    jobSelector: 'job=~"fabricpulse.*"',

    // A NIC is flapping when the mesh saw it lose the fabric this often within the window. Three is more than a
    // reboot and a re-seated cable give. The window must be at least four scrape intervals; raise it when cables of
    // yours fail more slowly, lower it only for tests.
    flapThreshold: 3,
    flapWindow: '5m',
    // How long the alert stays after the window has emptied. It replaces `for`, which a flap resets on each pause.
    flapKeepFiringFor: '5m',

    // For how long a front-end network that was lost is shown once it is back: scrapes do not see it while it is away.
    frontEndWindow: '15m',

    // How far back the last value of a gauge counts when scrapes fail. A failed scrape must not hide a dead NIC, a
    // host that is gone for longer is the business of FabricExporterDown.
    lastValueWindow: '2m',

    // An exporter counts as down when no scrape has worked for this long: at least twice the scrape interval.
    exporterDownFor: '1m',
    // No fabricpulse daemon at all for this long: above a restart of Prometheus.
    noDataFor: '5m',
    // A collector that fails for this long is broken, not unlucky.
    collectorFailingFor: '10m',

    // Fleet time: how wide the error bound may be. Half a millisecond tells which of two events on two hosts came
    // first in nearly all cases; a fleet on hardware timestamps can ask for 0.00001.
    clockBoundSeconds: 0.0005,
    clockBoundWideFor: '5m',
    clockUnsynchronizedFor: '2m',
    // A sidecar without a coordinator, a coordinator whose hosts are not the fleet: longer than a restart takes.
    clockCoordinatorDownFor: '2m',
    clockNoQuorumFor: '2m',

    // A lane that stays out of service. Above the remediation's hold-down, so that a planned pause does not alert.
    laneDownFor: '10m',
    // Failovers of one NIC of one job within the window, per lane: the plugin survives them, each costs a stall.
    laneFailoverThreshold: 5,
    laneFailoverWindow: '10m',

    // PCIe that trained below what the device can do, for this long: a slot, a riser, a firmware.
    pcieDegradedFor: '10m',
    // How long a GID that moved to another index is shown; jobs that run keep the old index.
    gidMovedWindow: '15m',
    gidInconsistentFor: '5m',

    // A host whose stamps, or whose UTC, contradict the fleet for this long. The coordinator holds a suspicion for 60 s
    // after the last reason for it: with less than that, what was seen once would alert.
    clockSuspectFor: '2m',

    // The reconciler of the remediation receiver comes round each second; silence beyond this is a hang.
    remediationStalledSeconds: 60,
    // How long a failed remediation is shown.
    remediationFailedWindow: '15m',

    // Severities: critical pages, warning makes a ticket, info is only shown.
    severities: {},  // by alert name, for example { FabricNicDisconnected: 'warning' }
    // Alerts that are not wanted at all, by name.
    disabledAlerts: [],
    // Labels that each alert gets, for routing: { team: 'fabric' }.
    extraLabels: {},
    // %s becomes the name of the alert.
    runbookURLPattern: 'https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/%s.md',

    // Dashboards.
    dashboardNamePrefix: 'Fabricpulse / ',
    dashboardTags: ['fabricpulse-mixin'],
    dashboardRefresh: '10s',
    dashboardPeriod: 'now-30m',
    dashboardTimezone: 'utc',
    // Only data sources whose name matches are offered.
    datasourceFilterRegex: '',
    // The label that tells several fleets in one Prometheus apart. Without such a label "All" still works.
    clusterLabel: 'cluster',
  },
}
