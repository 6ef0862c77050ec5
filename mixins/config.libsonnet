// Every knob of the mixin. Change them from outside, never here:
//   (import 'mixin.libsonnet') + { _config+:: { flapThreshold: 5 } }
// or, without jsonnet: fabricpulse rules render --set flapThreshold=5 --output-dir DIR
{
  _config+:: {
    // What is put between the braces of each series, besides what a rule or panel itself needs. Narrow it when one
    // Prometheus holds several fleets: 'cluster="gpu-a"'. Empty takes all fabricpulse series.
    selector: '',
    // The jobs that scrape fabricpulse, for the alert on an exporter that does not answer.
    jobSelector: 'job=~"fabricpulse.*"',

    // A NIC is flapping when the mesh saw it lose the fabric this often within the window. Three is more than a
    // reboot and a re-seated cable give. The window must be at least four scrape intervals; raise it when cables of
    // yours fail more slowly, lower it only for tests. Exporters say of the last twenty disconnects, of two hours,
    // at once: no more than that.
    flapThreshold: 3,
    flapWindow: '5m',
    // How long the alert stays after the window has emptied. It replaces `for`, which a flap resets on each pause.
    flapKeepFiringFor: '5m',

    // For how long a front-end network that was lost is shown once it is back: scrapes do not see it while it is away.
    frontEndWindow: '15m',

    // How far back the last value of a gauge counts when scrapes fail. A failed scrape must not hide a dead NIC, a
    // host that is gone for longer is the business of FabricExporterDown.
    lastValueWindow: '2m',

    // A gauge that changes so often within the window, and is bad for that share of it, is bad, although it never stays so for
    // as long as its alert asks.
    unsteadyWindow: '10m',
    unsteadyChanges: 5,
    unsteadyShare: 0.2,

    // Rates of a job's flows: two of the longest scrape intervals at least. A longer fallback beside it would be evaluated
    // for each flow at each evaluation, used or not. delay_window_s of the qp exporter is as long.
    rateWindow: '2m',

    // How often groups are evaluated that need it less often than Prometheus evaluates rules: what dashboards alone read,
    // and alerts whose `for` or window is of minutes. An alert without `for` comes later by up to one interval, one with `for` by up to
    // nearly two: the first evaluation that finds it, and the first after `for` has passed. What it reads of recorded series adds
    // the interval of these. An alert that counts events sees for certain those that lie within its window less the interval, so that the
    // interval is at most a quarter of the window. What is recorded at most each four minutes: Prometheus finds a recorded value for five.
    slowInterval: '1m',
    // The same of what is recorded of an hour of each flow, and of paths of jobs that stay for as long as the job.
    seldomInterval: '2m',
    // The same of what waits for ten minutes and more, looks back over an hour, or is recorded and changes over minutes. At most four
    // minutes, see slowInterval; and at most half of what the alerts that are evaluated as seldom wait for, or they come later by more than that.
    // What others read of its records is as old: FabricNicDisconnected where Prometheus keeps no fabricpulse_nic_disconnected, FabricIbCongested how many NICs
    // there are.
    rareInterval: '4m',
    // Flows of jobs and slow edges: half of contentionFor and pathSlowFor and more, and a scrape interval at least.
    flowInterval: '30s',

    // An exporter counts as down when no scrape has worked for this long, and so many within the window have failed:
    // at a long scrape interval a single one fills the time, and the first scrape of a new target may come too early. So many scrapes
    // must fit into the window: where the interval is more than a minute raise both, the first above the interval.
    exporterDownFor: '1m',
    exporterFailedScrapes: 3,
    exporterFailedWindow: '3m',
    // No value of any fabricpulse daemon within lastValueWindow, for this long: above a restart of Prometheus, and above
    // what the first scrapes of a new one take.
    noDataFor: '3m',
    // A collector that fails for this long is broken, not unlucky.
    collectorFailingFor: '10m',

    // Fleet time: how wide the error bound may be. Half a millisecond tells which of two events on two hosts came
    // first in nearly all cases; a quiet fleet without an anchor can ask for 0.00005.
    clockBoundSeconds: 0.0005,
    clockBoundWideFor: '5m',
    clockUnsynchronizedFor: '2m',
    // A sidecar without a coordinator, a coordinator whose hosts are not the fleet: longer than a restart takes.
    clockCoordinatorDownFor: '2m',
    clockNoQuorumFor: '2m',
    // How long it is shown that a machine was paused, or that its fleet time was wrong for another reason.
    clockContradictedWindow: '15m',

    // A lane that stays out of service. Above the remediation's hold-down, so that a planned pause does not alert.
    laneDownFor: '10m',
    // Failovers of one NIC of one job within the window, per lane: the plugin survives them, each costs a stall.
    laneFailoverThreshold: 5,
    laneFailoverWindow: '10m',
    // Above what it takes until a slow NIC is known, which is the cause: its probes must be slow for some seconds, then a scrape,
    // an evaluation of what is recorded with each scrape, and flowInterval twice.
    laneFailoverFor: '2m',
    // For how long after these failovers a NIC that may be slow holds their alert back. Above laneFailoverFor and pathSlowFor,
    // each later by an interval; much below laneFailoverWindow, or in a large job there is always such a NIC and never an alert.
    laneFailoverHold: '4m',
    // A job that goes on over TCP. Above what it takes until the alert of a dead NIC is known, which is the cause: a scrape
    // and an evaluation. It stays through failed scrapes: the job's TCP may fill the network by which these come.
    lastResortFor: '2m',
    lastResortKeepFiring: '2m',

    // PCIe that trained below what the device can do, for this long: a slot, a riser, a firmware.
    pcieDegradedFor: '10m',
    // Which NICs that is asked of. Slots that are slower by design: 'pci_address!~"0000:c1.*"'.
    pcieSelector: '',
    gidInconsistentFor: '5m',

    // A host whose stamps, or whose UTC, contradict the fleet for this long. The coordinator holds a suspicion for 60 s
    // after the last reason for it: with less than that, what was seen once would alert.
    clockSuspectFor: '2m',

    // The reconciler of the remediation receiver ends a cycle each second; silence beyond this is a hang.
    remediationStalledSeconds: 60,
    // A journal that cannot be written: longer than a moment of a busy disk.
    remediationJournalFailingFor: '1m',
    // A journal that was changed while nobody ran is seen once; it is shown this long.
    remediationJournalChangedFor: '1h',
    // How long a failed remediation, and a request without credentials, is shown.
    remediationFailedWindow: '15m',

    // A flow is slow when its delay is this many times that of its job's quick flows, and more than this: below, queues
    // of a switch and the noise of stamps are of the same size.
    contentionScore: 3,
    contentionDelaySeconds: 0.00005,
    // Shorter than most jobs take to be noticed by people, longer than one burst. Alertmanager's route of FabricNetworkSlow
    // waits for rateWindow and this together (deploy/alertmanager.yml).
    contentionFor: '30s',
    // A path that is shared is quiet now and then: what shares it pauses, or the job sends less over it. Above that, or each quiet
    // moment ends one alert and begins another. That of an incast, which mutes those of its flows, ends after them.
    contentionKeepFiring: '1m',
    incastKeepFiring: '2m',
    // Slow flows into one NIC that make an incast.
    incastSenders: 3,
    // A NIC is full when it receives this share of the most that it usually does, as known so long ago, to the inverse.
    fullRatio: 0.8,
    usualPeakAge: '10m',
    // The job's packets go another way than probes when they take this many times as long.
    inBandRatio: 3.0,
    inBandFor: '1m',
    // Receive side: packets that the host did not take, a second; share of time in which memory writes stalled.
    receiverDropsPerSecond: 10.0,
    pcieStalledRatio: 0.3,
    // Share of packets with the congestion mark; congestion notifications a second. Some marks are how DCQCN works.
    ecnMarkedRatio: 0.05,
    cnpPerSecond: 1000.0,
    // Share of time for which a NIC is paused, or pause frames a second; a storm is most of the time.
    pausedRatio: 0.05,
    pauseFramesPerSecond: 1000.0,
    pauseStormRatio: 0.5,
    congestionFor: '1m',
    // How much less the least used NIC of a job on a host may send than the most used one, when that sends this much.
    imbalanceRatio: 0.4,
    imbalanceLeastBytesPerSecond: 100000000.0,
    imbalanceFor: '5m',
    // Bandwidth of a job's collectives against its own hour before, and against the median of other jobs.
    bandwidthNormalRatio: 0.8,
    bandwidthFleetRatio: 0.6,
    bandwidthFor: '2m',

    // Gray failures as probes see them: share of packets lost, and at least so many within the window.
    pathLossRatio: 0.005,
    pathLossWindow: '2m',
    pathLossLeast: 5,
    // An edge alone. The first losses of a NIC that dies come a second before it is known to be dead: longer than that, and no
    // evaluation without it in between.
    pathLossFor: '15s',
    pathDownFor: '15s',
    pathSlowFor: '30s',
    // A NIC of a host that is less slow than another one of it by this factor is not named.
    slowestNicFactor: 1.5,
    // Nor is one that moves more than another slow NIC of its host by this factor.
    busiestNicFactor: 1.5,
    // NICs of several hosts of a network that are slow together share something: they are not named for so long, in which
    // FabricPathContended comes if a job waits there (rateWindow, contentionFor and two intervals of each); and while that fires,
    // for so long at most. Nor is a flow called contended for longer that was so and is no longer measured to be.
    nicSlowWait: '4m',
    nicSlowHold: '30m',
    // A slow NIC that the job has left has no queue until it comes back: longer than lanes stay away before they try it again.
    nicSlowKeepFiring: '2m',
    // A switch or link is named from this probability on; the coordinator has waited some seconds by then.
    faultConfidence: 0.9,
    faultFor: '5s',
    faultKeepFiring: '2m',
    // A NIC whose cable leads to a wrong leaf: the tree of leaves is computed each minute from ten minutes, and is unknown
    // for some after a restart of the coordinator.
    miscabledFor: '10m',
    miscabledKeepFiring: '10m',
    // A leaf with fewer next hops than its siblings: after a change of routes all paths are traced again within ten minutes
    // (the exporters' probe.retrace_s), and until then some leaves show old ones; a coordinator that was restarted learns the
    // paths within some minutes.
    fewerPathsFor: '15m',
    fewerPathsKeepFiring: '15m',
    // From so many edges on, the NIC that they share is named instead of each. At most three where more than 64 hosts are: their
    // exporters tell no more of a NIC's edges that are slow and lose nothing.
    sharedEdges: 3,
    // Of two NICs of an edge that loses packets, or large ones, the one that has so many times as many lossy edges explains it.
    explainedFactor: 1.5,
    // So many NICs of a network of which none explains the others', and of lossy ones so large a share of it: the network, not the
    // NICs, is the news.
    networkLossyLeastNics: 3,
    networkLossyShare: 0.3,
    // What is promised of probes: delay (99 % of them) and loss, and the share of the time in which it must be kept.
    sloOwdSeconds: 0.001,
    sloLossRatio: 0.001,
    sloTarget: 0.99,
    sloWindow: '1h',
    // A network that was first seen more recently is not judged yet.
    sloLeastObserved: '15m',
    // The window ends so long ago: of a small network one slow NIC is enough, and its own alert, the cause, comes first.
    sloLag: '5m',

    // A flapper that is too slow for flapThreshold: one flap in three minutes, for hours.
    slowFlapThreshold: 6,
    slowFlapWindow: '1h',
    // Longer than from one such flap to the next. Alertmanager mutes the page of the NIC meanwhile, also where it does not
    // come back.
    slowFlapKeepFiringFor: '15m',
    // The health of a NIC is unknown: nobody to probe, or the host itself was late all the time.
    nicUnknownFor: '10m',
    // A NIC that is gone from its bus, ports that are missing: longer than a reset takes.
    nicGoneFor: '1m',
    // Queue pairs that gave up: above what it takes until a dead host is known, which is the cause.
    retriesExceededFor: '30s',
    // A link that went down: above what it takes until the page of its NIC fires, if it lost the fabric with it: a scrape of the mesh exporter and an
    // evaluation. Enough for a minute of the former and half a minute of the latter.
    linkDownedFor: '1m30s',
    // CRC and symbol errors within a quarter of an hour. A good link has none for days.
    linkErrorThreshold: 10,
    // Share of NICs below which a value is the odd one out, not a second fleet; and how many NICs must be there to tell.
    oddShare: 0.2,
    oddLeastNics: 5,
    oddFor: '10m',

    // A rank that another one waits for, for so much more of the time within the window than it waits itself. Below, jobs
    // whose ranks have unequal work by design would alert; the window must be two scrape intervals at least.
    stragglerShare: 0.25,
    stragglerWindow: '2m',
    stragglerFor: '15s',
    // For how long nothing may move on a connection with an unfinished request before the collective is stalled, s.
    // Above what a checkpoint of few ranks takes in your jobs, if they do that within collectives.
    stalledSeconds: 5.0,
    // A host that has had more processes of a job within this window, or when a wait of the job began that still lasts, has lost some: of which
    // rank is not known.
    processesWindow: '10m',
    // By how many times longer ranks must wait for one another in a circle: above a scrape interval, as hosts are scraped one after
    // another.
    circleFactor: 4.0,

    // A host that is not in its own membership probes nothing.
    notMemberFor: '1m',
    // A daemon that answered within the last day and is gone from discovery; one that answers without any metric.
    exporterGoneFor: '10m',
    exporterEmptyFor: '5m',
    // An exporter that is too old for the rules: longer than a rolling upgrade takes.
    exporterOldFor: '1h',
    // None: a host must be known to be down before a job that waits for it is reported as stalled, which takes five seconds.
    hostDownFor: '0s',
    // Share of the NICs of a network that must be disconnected for the network, not the NICs, to be the news.
    networkDownShare: 0.3,
    networkDownLeastNics: 3,
    // The same of NICs whose delay is far above its baseline.
    networkSlowShare: 0.3,
    networkSlowLeastNics: 3,
    // An agent that reaches no receiver, a receiver that cannot see: before the next NIC flaps.
    agentLostFor: '2m',
    remediationBlindSeconds: 120.0,
    // Agents without a receiver for this long: above a restart of it, and above what the first scrapes take.
    remediationDownFor: '3m',
    // A kill switch that somebody forgot.
    remediationPausedFor: '4h',
    pushFailingFor: '2m',

    // Severities: critical pages, warning makes a ticket, info is only shown.
    severities: {},  // by alert name, for example { FabricNicDisconnected: 'warning' }
    // Alerts that are not wanted at all, by name.
    disabledAlerts: [],
    // Labels that each alert gets, for routing: { team: 'fabric' }.
    extraLabels: {},
    // %s becomes the name of the alert.
    runbookURLPattern: 'https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/%s.md',
    // Where Grafana is, 'https://grafana.example': alerts then have a dashboard_url, the panel with their series, with host, NIC
    // or job selected there.
    grafanaURL: '',
    // How long before the last evaluation of the alert the time range of that link begins; it ends now. Empty: the page's own
    // range, for a ruler whose templates have no `query` (Grafana's own; those of Prometheus, Mimir, Thanos and vmalert have it).
    alertLinkPeriod: '30m',

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
