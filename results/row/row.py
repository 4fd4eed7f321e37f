"""One task's line in the results: what people read, what spreadsheets load, what `--json` prints.

The first 17 columns are a contract, in names and order. A fact that was not measured is None, an empty cell, never 0. A row that is not
Complete carries no measured number, so that none is averaged by mistake; measurements from before a failure stay in the raw results.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from results.row.scores import read_scores


class RowStatus(StrEnum):
    """A task's status; the last two only while its campaign runs."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    ADOPTED = "Adopted"
    PENDING = "Pending"
    RUNNING = "Running"


def column_name(field: str) -> str:
    """The column of a field: `load_ms_median` is `LoadMsMedian`."""
    return "".join(word[:1].upper() + word[1:] for word in field.split("_"))


class Row(BaseModel):
    """Fields in the order of the columns; a column's name is the field's in PascalCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=column_name,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        defer_build=True,
    )

    # the contract
    status: RowStatus
    """Complete, Failed, Cancelled or, if another scheduler carries the task on, Adopted; Pending or Running while the campaign runs."""
    job_id: str
    """Id of the task: campaign id and number."""
    file_name: str
    """Name of the model."""
    file_size: int
    """Size of the model, in bytes."""
    compute_units: str
    """Requested unit. A row is Complete only if the model really ran on this unit."""
    device_name: str = ""
    """Name of the device: the one its owner gave it, or its host name."""
    soc: str = ""
    """Processor or system on chip."""
    ram: float | None = None
    """Memory of the device, in GB of 1,073,741,824 bytes."""
    device_os: str = ""
    """Name and version of the operating system."""
    load_ms_median: float | None = None
    """Median time to create a session, each in a fresh process, in milliseconds. Cold loads count only if there are no others."""
    load_ms_average: float | None = None
    """Mean of the load times behind LoadMsMedian, in milliseconds."""
    load_ms_std_dev: float | None = None
    """Standard deviation of the same load times, with Bessel's correction, in milliseconds. Empty below two loads."""
    peak_load_ram_usage: float | None = None
    """Highest resident memory during a load, minus what the process held before it, in MB of 1,048,576 bytes: the maximum over the
    loads."""
    inference_ms_median: float | None = None
    """Median time of one timed inference, without warm-up, in milliseconds: the median of the launches' medians, to which the interval
    belongs."""
    inference_ms_average: float | None = None
    """Mean time of all timed inferences of all launches, in milliseconds."""
    inference_ms_std_dev: float | None = None
    """Standard deviation of the same times, with Bessel's correction, in milliseconds. Empty below two inferences, and where PerSample is
    above 1, because means scatter less."""
    peak_inference_ram_usage: float | None = None
    """Highest resident memory during warm-up and timed inferences, minus what the process held before the load, in MB of 1,048,576
    bytes."""

    # beyond the contract
    load_ms_first: float | None = None
    """Time of the first load, in milliseconds. If LoadFirstKind is cold, the model's file was not cached in memory."""
    load_ms_min: float | None = None
    """Fastest load, in milliseconds."""
    load_ms_max: float | None = None
    """Slowest load, in milliseconds."""
    loads: int | None = None
    """Number of timed loads in fresh processes, including cold ones."""
    inference_ms_first: float | None = None
    """Time of the first warm-up inference, in milliseconds: nothing had run in its process before."""
    inference_ms_min: float | None = None
    """Fastest timed inference, in milliseconds. Empty where PerSample is above 1."""
    inference_ms_max: float | None = None
    """Slowest timed inference, in milliseconds. Empty where PerSample is above 1."""
    inference_ms_p50: float | None = None
    """Median of all timed inferences of all launches pooled, in milliseconds. Empty where PerSample is above 1."""
    inference_ms_p90: float | None = None
    """90th percentile of all timed inferences, by nearest rank, in milliseconds. Empty below 44 inferences, and where PerSample is above
    1."""
    inference_ms_p95: float | None = None
    """95th percentile of all timed inferences, by nearest rank, in milliseconds. Empty below 90 inferences, and where PerSample is above
    1."""
    inference_ms_p99: float | None = None
    """99th percentile of all timed inferences, by nearest rank, in milliseconds. Empty below 459 inferences, and where PerSample is above
    1."""
    runs: int | None = None
    """Number of timed samples. Each sample is one inference if PerSample is 1."""
    warmups: int | None = None
    """Number of warm-up inferences."""
    cpu_percent: float | None = None
    """CPU time divided by wall time of the timed inferences, in percent; 100 is one core. Empty if the timed inferences take less than 0.2
    s in total."""
    peak_load_ram_total: float | None = None
    """Highest resident memory during a load, including what the process held before it, in MB of 1,048,576 bytes."""
    peak_inference_ram_total: float | None = None
    """Highest resident memory during warm-up and timed inferences, including what the process held before the load, in MB of 1,048,576
    bytes."""
    timer_overhead_ns: int | None = None
    """Time to read the clock once, in nanoseconds."""
    involuntary_switches: int | None = None
    """Number of times the system took the processor away from the process in the timed windows."""
    threads: int | None = None
    """Number of threads that really computed one inference."""
    shapes: str = ""
    """Resolved shapes of the inputs. Rows with different shapes must not be compared."""
    dtypes: str = ""
    """Element types of the inputs."""
    seed: int | None = None
    """Seed of the generated inputs."""
    driver: str = ""
    """Driver that loaded and ran the model."""
    runtime: str = ""
    """Runtime of the driver, with its version."""
    providers: str = ""
    """Execution providers of the live session, most preferred first."""
    output_sha256: str = ""
    """sha256 of the outputs of the last timed inference."""
    max_error: float | None = None
    """Largest difference of the outputs from the reference, relative to the reference's largest magnitude."""
    tolerance: float | None = None
    """Largest difference that counts as agreement, as a share of a value. Rounding inside the model is tolerated in addition (see
    Compared)."""
    compared: str = ""
    """Output that differs most from the reference: its name, its number of values, its largest difference, and the tolerated difference."""
    verdict: str = ""
    """What the numbers are worth: valid, simulated, unwitnessed, mismatch, unchecked, few-runs, throttled, busy-host, drift, bimodal, noisy
    or unreadable. Empty unless Complete."""
    verdict_reason: str = ""
    """Reasons for the verdict, gravest first."""
    reason: str = ""
    """Reason for the failure: one word from a closed list."""
    detail: str = ""
    """Reason for the failure, in a sentence."""
    attempt: int | None = None
    """Number of the attempt that decided the task."""
    notes: str = ""
    """Choices that the campaign left open: sizes of dimensions, input values, warm-up, threads."""
    campaign: str = ""
    """Id of the campaign."""
    worker_id: str = ""
    """Peer id of the worker that signed the result."""
    device_id: str = ""
    """Id of the device's hardware."""
    arch: str = ""
    """Processor architecture."""
    cores: int | None = None
    """Number of physical cores."""
    node_version: str = ""
    """Version of sark-node on the worker."""
    model_sha256: str = ""
    """sha256 of the model's bytes."""
    task_sha256: str = ""
    """sha256 of the signed task's bytes."""
    stages: str = ""
    """Duration of each stage on the worker's clock, in seconds."""
    inference_ms_median_low: float | None = None
    """Lower end of the median's 95 % interval, in milliseconds, from the ranks of the launches' medians. Empty below six launches."""
    inference_ms_median_high: float | None = None
    """Upper end of the same interval, in milliseconds."""
    replica: int | None = None
    """Number of this replica among several runs of one task on devices of one class, from 1. Empty if there is only one."""
    agreement: str = ""
    """agrees, disagrees or alone (no other replica is complete on another device). Empty for a row without replicas."""
    agreement_reason: str = ""
    """Replicas that this one disagrees with, and how: outputs further apart than the tolerance, or medians more than 5 % apart with
    intervals that do not overlap."""

    horizon_s: float | None = None
    """Seconds from the first timed inference to the last. The median's interval holds for this stretch of time: another hour may give
    another median."""
    launches: int | None = None
    """Number of fresh processes that timed inferences."""
    half_width_percent: float | None = None
    """Half the width of the median's interval, in percent of the median. A requested precision is a limit on this value."""
    launch_spread_percent: float | None = None
    """Difference between the slowest and the fastest launch's median, in percent of the median."""
    per_sample: int | None = None
    """Number of inferences behind each sample, which is their mean. Above 1 if one inference is too short for the clock."""
    outliers_mild: int | None = None
    """Number of samples more than 1.5 but not more than 3 interquartile ranges outside their launch's middle half. None are dropped. Empty
    where PerSample is above 1."""
    outliers_severe: int | None = None
    """Number of samples more than 3 interquartile ranges outside their launch's middle half. Empty where PerSample is above 1."""
    outliers_mad: int | None = None
    """Number of samples more than 5 scaled median absolute deviations from their launch's median. Empty where PerSample is above 1."""
    load_first_kind: str = ""
    """Kind of the first load. cold: the file's pages had been dropped from memory; fresh: the file may have been cached."""
    warm_load_ms: float | None = None
    """Median time to create a session once more in the same process, in milliseconds."""
    pre_ms: float | None = None
    """Time of the pre-run steps, in milliseconds."""
    post_ms: float | None = None
    """Time of the post-run steps, in milliseconds."""
    stall_percent: float | None = None
    """Share of the timed windows in which something that was ready to run had no processor (pressure stall information), in percent."""
    others_percent: float | None = None
    """Share of all processors' time in the timed windows that went to other processes, in percent. If the windows are too short: share of
    the processors that were busy with other processes at moments around them."""
    steal_percent: float | None = None
    """Share of all processors' time that the hypervisor took, in percent."""
    clock_mhz: float | None = None
    """Clock of the processors, in MHz: the median of the launches."""
    throttles: int | None = None
    """Number of times the processors were slowed because of heat."""
    temperature_c: float | None = None
    """Temperature of the processor, in °C: the highest of the launches."""
    on_battery: bool | None = None
    """Whether the device ran on battery in any launch."""
    accelerator: str = ""
    """GPU that the model ran on, as its driver names it."""
    accelerator_source: str = ""
    """Source of the accelerator's figures, such as nvml."""
    gpu_util: float | None = None
    """Share of the timed windows in which the GPU ran something, in percent."""
    vram_mb: float | None = None
    """Maximum GPU memory that the run held, in MB of 1,048,576 bytes."""
    power_w: float | None = None
    """Mean power of the GPU in the timed windows, in watts."""
    idle_power_w: float | None = None
    """Power of the GPU just before the first load, in watts."""
    energy_per_inference_j: float | None = None
    """Energy of the timed windows, as read by EnergySource, divided by their inferences, in joules. It includes what the device draws when
    idle."""
    gpu_clock_mhz: float | None = None
    """Mean clock of the GPU, in MHz."""
    gpu_temperature_c: float | None = None
    """Highest temperature of the GPU, in °C."""
    gpu_throttled: str = ""
    """Reasons for which the GPU was slowed."""
    access: str = ""
    """white: the driver loaded the model; gray: a local server did, and the driver saw its process; black: the driver saw only the
    answers."""
    ttft_ms_median: float | None = None
    """Median time to the first token, in milliseconds."""
    ttft_ms_p90: float | None = None
    """90th percentile of the time to the first token, in milliseconds. Empty below 44 requests."""
    itl_ms_median: float | None = None
    """Median time between one token and the next, in milliseconds."""
    tpot_ms_median: float | None = None
    """Median time per output token after the first, in milliseconds."""
    e2e_ms_median: float | None = None
    """Median time from the request to the last token, in milliseconds."""
    tokens_per_second: float | None = None
    """Output tokens per second over all requests."""
    output_tokens: float | None = None
    """Number of output tokens of all requests, as the server counts them."""
    goodput: float | None = None
    """Requests per second that met their objective."""
    rouge1: float | None = None
    """F1 of single words against the reference summaries."""
    rouge2: float | None = None
    """F1 of pairs of words against the reference summaries."""
    rouge_l: float | None = None
    """F1 of the longest common subsequence with the reference summaries."""
    figures: str = ""
    """All other measured figures; each name contains its unit."""
    fingerprint: str = ""
    """Hash over device, system, runtime, unit, threads, shapes, seed, steps and model: rows with the same fingerprint were measured
    alike."""
    simulated: bool | None = None
    """true: a simulation. Its figures come from a script, or its device only pretends to be one. Empty: no simulation."""
    variant: str = ""
    """Form of the model, such as int8; the model's name ends in it. Empty if there is only one form."""
    batch: int | None = None
    """Requested size of the batch. Empty: the size comes from the model."""
    throughput_per_s: float | None = None
    """Inputs per second, one inference after the other: Batch divided by InferenceMsMedian. Without a requested batch: inferences per
    second. Empty for a server, which handles several requests at a time."""
    trust: str = ""
    """Reason why the submitter trusted the worker when it assigned the task: own, pool NAME, listed or stranger. Empty: no worker had the
    task."""
    output_sketch: str = ""
    """Sketch of the outputs of the first launch: type, number of values, norm and 16 signed sums of each, so that devices that round
    differently can be compared."""
    witnessed_s: float | None = None
    """Seconds from the reveal of a stranger's inputs to the arrival of its result, on the scheduler's clock. Empty for other rows."""
    unexplained_percent: float | None = None
    """Share of WitnessedS in which, according to the record, no model was loaded and no inference ran, in percent."""
    inference_ms_witnessed_max: float | None = None
    """WitnessedS divided by the number of timed inferences, in milliseconds: the maximum mean time of one inference, if the worker made all
    that it claims."""
    canary: str = ""
    """Outcome of repeating an inference of a stranger's run: the launch whose outputs the scheduler computed again and confirmed, or why it
    did not."""
    device_key: str = ""
    """Peer id of the key that DeviceId belongs to: WorkerId, or the first of several keys that the submitter knows as workers of that
    device. Rows are of one device only if they share DeviceId and DeviceKey."""
    preempted: int | None = None
    """Number of times the task gave way to a higher priority and started again from the beginning; the row contains nothing measured
    before. Empty if nothing could preempt the task."""
    against: str = ""
    """Model that took turns with this one, and that this one is compared with. Empty: this model was measured alone."""
    against_unit: str = ""
    """Unit on which Against ran, in processes of its own. Empty: Against ran on the same unit, in the same processes."""
    compare_verdict: str = ""
    """Comparison with Against: FASTER, SLOWER, SAME or AMBIGUOUS."""
    compare_reason: str = ""
    """Ratios with their intervals, and what they leave open."""
    ratio: float | None = None
    """This model's wall time divided by that of Against: the middle of the launches, each of which contributes one ratio."""
    ratio_low: float | None = None
    """Lower end of Ratio's interval. The intervals of all looks, by wall and by CPU time, together hold the true ratio in at least 98 % of
    comparisons."""
    ratio_high: float | None = None
    """Upper end of Ratio's interval."""
    cpu_ratio: float | None = None
    """This model's CPU time over all threads divided by that of Against. Empty if the system does not report it."""
    cpu_ratio_low: float | None = None
    """Lower end of CpuRatio's interval."""
    cpu_ratio_high: float | None = None
    """Upper end of CpuRatio's interval."""
    contention: bool | None = None
    """true: Ratio and CpuRatio differ significantly, so one of the models waits more than the other. Empty: no significant difference."""
    against_ms_median: float | None = None
    """Median time of one inference of Against in the same launches, in milliseconds."""
    sustain_s: float | None = None
    """Requested duration of a sustained run, which infers without a break, in seconds. Empty for a run that is not sustained."""
    burst_ms: float | None = None
    """Median time of one inference of a sustained run before the device slowed down, in milliseconds."""
    knee_s: float | None = None
    """Seconds into a sustained run after which the device became at least 5 % slower and stayed so. Empty if it did not."""
    steady_ms: float | None = None
    """Median time of one inference in the last level of a sustained run, in milliseconds. Empty if the speed was still changing at the
    end."""
    slowdown_percent: float | None = None
    """Increase of SteadyMs over BurstMs, in percent."""
    recovery_s: float | None = None
    """Seconds of rest after which the device was as fast as at first. Empty if there was no knee, or no recovery while the device was
    watched."""
    burst_j: float | None = None
    """Energy of one inference before the knee, as read by EnergySource, in joules."""
    steady_j: float | None = None
    """Energy of one inference in the last level, as read by EnergySource, in joules."""
    sustained: str = ""
    """Findings of a sustained run, in a sentence."""
    energy_source: str = ""
    """Sources that measured EnergyPerInferenceJ, and the part that each measured: a wall meter if there is one, otherwise the sum of those
    of GPU, package and memory that were read."""
    remarks: str = ""
    """Remarks on the host that leave the verdict unchanged: host busy 6% says that other work ran, and that the times do not show it."""
    sitting: int | None = None
    """Number of this sitting among several on one device at different times, from 1. Empty if there is only one."""
    first_sitting: str = ""
    """Id of the task of the first sitting of the same measurement. Empty for a row without sittings."""
    ended_at: str = ""
    """Time when the sitting's result was stored, in UTC, by the scheduler's clock. Empty for a row without sittings."""
    sittings: int | None = None
    """Number of sittings pooled in the next columns: those that have times and the same Fingerprint. Empty below two."""
    sittings_span_s: float | None = None
    """Seconds from the end of the first pooled sitting to the end of the last."""
    pooled_ms_median: float | None = None
    """Time of one inference on this device over its sittings, in milliseconds: a random-effects estimate from the logs of the sittings'
    medians."""
    pooled_ms_median_low: float | None = None
    """Lower end of PooledMsMedian's 95 % interval (Hartung and Knapp), in milliseconds. It holds beyond the hours of the sittings."""
    pooled_ms_median_high: float | None = None
    """Upper end of the same interval, in milliseconds."""
    between_sittings_percent: float | None = None
    """Share of the variance of the sittings' medians that lies between sittings, not within them, in percent."""
    scores: str = ""
    """Scores of the answers to the campaign's examples, by metric, such as `accuracy=0.9712`. Empty: the model was not evaluated."""
    scores_why: str = ""
    """Reason why an evaluated model lacks scores."""
    examples_sha256: str = ""
    """sha256 of the examples, in the form in which devices get them."""
    answers_sha256: str = ""
    """sha256 of the model's answers, which are in the record."""

    @property
    def quality(self) -> float | None:
        """Quality of the answers: accuracy, or ROUGE-L of summaries. None: neither was scored."""
        return read_scores(self.scores).get("accuracy", self.rouge_l)

    results_url: str = ""
    """URL to which the campaign's results are also written when it ends. Empty: nowhere."""
    compute_type: str = ""
    """Type of the floats in which the runtime computed, such as bf16. Empty: the model's own type, or the runtime does not report it."""
    scored_by: str = ""
    """Packages of the metrics that scored the answers, with their versions, such as `wer_x=my-metrics 1.2`. Empty: only Sark's own
    metrics."""


CONTRACT: Final = 17
COLUMNS: Final[tuple[str, ...]] = tuple(column_name(name) for name in Row.model_fields)


def columns_page() -> str:
    """A page for people: all columns and their meanings."""
    rows = "\n".join(
        f"| {number} | `{name}` | {meaning.replace(chr(10), ' ')} |"
        for number, (name, meaning) in enumerate(column_meanings().items(), start=1)
    )
    return f"""# The columns of the CSV

The first 17 are those of Sark's predecessor, with its names and in its order. An empty cell means that the value was not measured.
A row that is not Complete contains no measured number. Written by `make spec` from `results/row/row.py`.

| # | column | meaning |
|---|---|---|
{rows}
"""


def column_meanings() -> dict[str, str]:
    """Each column and its meaning, for people."""
    return {column_name(name): field.description or "" for name, field in Row.model_fields.items()}
