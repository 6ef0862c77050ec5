// Recorded per flow of a job; in order, as later ones read earlier ones.
local flows = import '../lib/flows.libsonnet';
{
  prometheusRules+:: {
    local f = flows($._config),
    groups+: [
      {
        // An hour of each flow takes long to read.
        name: 'fabricpulse-flow-hour.rules',
        interval: $._config.seldomInterval,
        rules: [
          { record: 'flow:fabricpulse_qp_received_bytes:usual_rate', expr: f.usualRate },
          { record: 'nic:fabricpulse_qp_received_bytes:usual_peak', expr: f.usualPeak },
          { record: 'workload:fabricpulse_qp_received_bytes:median_rate', expr: f.medianRate },
        ],
      },
      {
        name: 'fabricpulse-flow.rules',
        interval: $._config.flowInterval,
        rules: [
          { record: 'flow:fabricpulse_qp_received_bytes:rate2m', expr: f.receivedRate },
          { record: 'nic:fabricpulse_qp_received_bytes:rate2m', expr: f.receivedRateOfNic },
          { record: 'flow:fabricpulse_qp_owd_seconds:p50_2m', expr: f.delayQuantile(0.5) },
          { record: 'workload:fabricpulse_qp_owd_seconds:quick_quarter', expr: f.quickQuarter },
          // Few: what follows is asked of these.
          { record: 'flow:fabricpulse_qp_owd_seconds:slow', expr: f.slowBesideOthers },
          { record: 'flow:fabricpulse_qp:congestion_signs', expr: f.congestionSigns },
          { record: 'flow:fabricpulse_qp_received_bytes:watched_rate', expr: f.watchedRate },
          { record: 'flow:fabricpulse_qp_received_bytes:slow_rate', expr: f.slowFlowRate },
          { record: 'flow:fabricpulse_qp_received_bytes:starved_rate', expr: f.starvedRate },
          { record: 'flow:fabricpulse_qp_owd_seconds:contended', expr: f.slowAndCongested },
          { record: 'lane:fabricpulse_lane_state:of_faulty_nic', expr: f.faultyLanes },
          { record: 'device:fabricpulse_nic_network:of_contended', expr: f.networksOfContended },
          { record: 'flow:fabricpulse_qp_owd_seconds:contended_paths', expr: f.contendedOnPath },
          { record: 'flow:fabricpulse_qp_owd_seconds:contended_in_network', expr: f.contendedInNetwork },
          { record: 'workload:fabricpulse_collective_bandwidth_bytes_per_second:avg', expr: f.collectiveBandwidth },
        ],
      },
      {
        // What is asked by hand: alerts ask for those that are slow.
        name: 'fabricpulse-score.rules',
        interval: $._config.slowInterval,
        rules: [
          { record: 'flow:fabricpulse_qp_owd_seconds:contention_score', expr: f.contentionScore },
        ],
      },
      {
        // A path that is not the probes' stays so for as long as the job: FabricInBandSlower is evaluated as seldom.
        name: 'fabricpulse-in-band.rules',
        interval: $._config.seldomInterval,
        rules: [
          { record: 'flow:fabricpulse_qp_owd_seconds:p10_2m', expr: f.delayQuantile(0.1) },
          { record: 'workload:fabricpulse_qp_owd_seconds:p10_quick_quarter', expr: f.quickQuarterOfFloors },
          { record: 'flow:fabricpulse_qp_owd_seconds:in_band_suspects', expr: f.inBandSuspects },
          { record: 'flow:fabricpulse_qp_owd_seconds:slower_than_probes', expr: f.slowerThanProbes },
        ],
      },
    ],
  },
}
