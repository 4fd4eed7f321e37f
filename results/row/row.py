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
    """Complete, Failed, Cancelled or, when another scheduler carries the task on, Adopted (Pending or Running while the campaign runs)."""
    job_id: str
    """The task: campaign id and number."""
    file_name: str
    """The model's name."""
    file_size: int
    """Of the model, in bytes."""
    compute_units: str
    """The unit asked for; a row is Complete only if it is what really ran."""
    device_name: str = ""
    """As its owner named it, or its host name."""
    soc: str = ""
    """Processor or system on chip."""
    ram: float | None = None
    """Of the device, in GB of 1,073,741,824 bytes."""
    device_os: str = ""
    """Name and version of the operating system."""
    load_ms_median: float | None = None
    """Milliseconds to create a session, each in a fresh process; a cold load is left out where there are others."""
    load_ms_average: float | None = None
    """Of the same loads."""
    load_ms_std_dev: float | None = None
    """With Bessel's correction; empty below two loads."""
    peak_load_ram_usage: float | None = None
    """Highest resident memory of a load above what the process held before it, in MB of 1,048,576 bytes; the highest of the loads."""
    inference_ms_median: float | None = None
    """Milliseconds of one timed inference, warm-up left out: the median of the launches' medians, to which the interval belongs."""
    inference_ms_average: float | None = None
    """Of all timed inferences of all launches."""
    inference_ms_std_dev: float | None = None
    """Of the same, with Bessel's correction; empty below two inferences, and where PerSample is above 1: means scatter less."""
    peak_inference_ram_usage: float | None = None
    """Highest resident memory while it warmed up and ran above what the process held before the load, in MB of 1,048,576 bytes."""

    # beyond the contract
    load_ms_first: float | None = None
    """The first of the loads, from a disk that had not just been read where LoadFirstKind says cold."""
    load_ms_min: float | None = None
    """The quickest load."""
    load_ms_max: float | None = None
    """The slowest load."""
    loads: int | None = None
    """How many loads in fresh processes were timed, a cold one counted in."""
    inference_ms_first: float | None = None
    """The cold one: the first warm-up inference."""
    inference_ms_min: float | None = None
    """The quickest; empty where PerSample is above 1."""
    inference_ms_max: float | None = None
    """The slowest; empty where PerSample is above 1."""
    inference_ms_p50: float | None = None
    """The median of all timed inferences as one heap; empty where PerSample is above 1."""
    inference_ms_p90: float | None = None
    """By nearest rank; empty below 44 inferences, and where PerSample is above 1."""
    inference_ms_p95: float | None = None
    """By nearest rank; empty below 90 inferences, and where PerSample is above 1."""
    inference_ms_p99: float | None = None
    """By nearest rank; empty below 459 inferences, and where PerSample is above 1."""
    runs: int | None = None
    """Timed samples: inferences, where PerSample is 1."""
    warmups: int | None = None
    """Inferences before them."""
    cpu_percent: float | None = None
    """CPU time over wall time of the timed inferences; 100 is one core. Empty where they take less than 0.2 s."""
    peak_load_ram_total: float | None = None
    """As PeakLoadRamUsage, with what the process held before."""
    peak_inference_ram_total: float | None = None
    """As PeakInferenceRamUsage, with what the process held before."""
    timer_overhead_ns: int | None = None
    """Of reading the clock once."""
    involuntary_switches: int | None = None
    """How often the system took the processor away in the timed window."""
    threads: int | None = None
    """Of one inference, as it ran."""
    shapes: str = ""
    """Of the inputs, resolved. Rows of different shapes are not to be compared."""
    dtypes: str = ""
    """Element types of the inputs."""
    seed: int | None = None
    """Of the made inputs."""
    driver: str = ""
    """What loaded and ran the model."""
    runtime: str = ""
    """Of the driver, with its version."""
    providers: str = ""
    """Execution providers of the live session, most preferred first."""
    output_sha256: str = ""
    """Of the outputs of the last timed inference."""
    max_error: float | None = None
    """Largest difference from the reference, relative to its largest magnitude."""
    tolerance: float | None = None
    """The largest difference that counts as agreeing, as a share of a value; rounding inside the model comes on top (Compared)."""
    compared: str = ""
    """The output that differs most from the reference, how many values it has, by how much the worst differs and what is tolerated."""
    verdict: str = ""
    """valid, simulated, unwitnessed, mismatch, unchecked, few-runs, throttled, busy-host, drift, bimodal, noisy or unreadable; empty unless
    Complete."""
    verdict_reason: str = ""
    """Why the verdict is what it is; all reasons, the gravest first."""
    reason: str = ""
    """Why it failed, in one word of a closed list."""
    detail: str = ""
    """Why it failed, in a sentence."""
    attempt: int | None = None
    """Which attempt this is."""
    notes: str = ""
    """What was chosen where the campaign did not say: sizes of dimensions, input values, warm-up, threads."""
    campaign: str = ""
    """Its id."""
    worker_id: str = ""
    """Peer id of the worker that signed the result."""
    device_id: str = ""
    """The hardware's id."""
    arch: str = ""
    """Processor architecture."""
    cores: int | None = None
    """Physical cores."""
    node_version: str = ""
    """Of sark-node on the worker."""
    model_sha256: str = ""
    """Of the model's bytes."""
    task_sha256: str = ""
    """Of the signed task's bytes."""
    stages: str = ""
    """Seconds of each stage on the worker's clock."""
    inference_ms_median_low: float | None = None
    """Lower end of the 95 % interval of the median, from the ranks of the launches' medians; empty below six launches."""
    inference_ms_median_high: float | None = None
    """Its upper end."""
    replica: int | None = None
    """Which of several runs of the same on devices of one class, from 1; empty where there is only one."""
    agreement: str = ""
    """agrees, disagrees or alone (no other replica is complete on another device); empty for a row without replicas."""
    agreement_reason: str = ""
    """In what it disagrees with which replica: outputs further apart than the tolerance, or medians more than 5 % apart with intervals
    that do not overlap."""

    horizon_s: float | None = None
    """Seconds from the first timed inference to the last. The interval of the median holds for this stretch of time: another hour may give
    another median."""
    launches: int | None = None
    """Fresh processes that timed inferences."""
    half_width_percent: float | None = None
    """Half of the median's interval as a percentage of the median: what precision asks for."""
    launch_spread_percent: float | None = None
    """From the quickest to the slowest launch's median, as a percentage of the median."""
    per_sample: int | None = None
    """Inferences behind each sample, which is their mean; above 1 where one is too short for the clock."""
    outliers_mild: int | None = None
    """Samples beyond 1.5, not beyond 3 widths of the middle half of their launch; none dropped. Empty where PerSample is above 1."""
    outliers_severe: int | None = None
    """Samples beyond 3 widths."""
    outliers_mad: int | None = None
    """Samples more than 5 scaled median absolute deviations from their launch's median."""
    load_first_kind: str = ""
    """Of the first load. cold: the file's pages were dropped from memory before; fresh: they may have been there."""
    warm_load_ms: float | None = None
    """Milliseconds to create a session once more in the same process."""
    pre_ms: float | None = None
    """Milliseconds of the pre-run steps."""
    post_ms: float | None = None
    """Milliseconds of the post-run steps."""
    stall_percent: float | None = None
    """Of the timed time in which something that wanted to run had no processor (pressure stall information)."""
    others_percent: float | None = None
    """Of all processors' time in the timed windows that went to other processes; of too short ones: of the processors, at moments
    around them."""
    steal_percent: float | None = None
    """Of all processors' time that the hypervisor took."""
    clock_mhz: float | None = None
    """Of the processors: the median of the launches."""
    throttles: int | None = None
    """Times that the processors were slowed because of heat."""
    temperature_c: float | None = None
    """Of the processor: the highest of the launches."""
    on_battery: bool | None = None
    """Whether it ran on battery in any launch."""
    accelerator: str = ""
    """Which GPU it ran on, as its driver names it."""
    accelerator_source: str = ""
    """Who read the accelerator, such as nvml."""
    gpu_util: float | None = None
    """Percent of the timed time in which the GPU ran something."""
    vram_mb: float | None = None
    """The most GPU memory the run held, in MB of 1,048,576 bytes."""
    power_w: float | None = None
    """Mean power of the GPU in the timed windows."""
    idle_power_w: float | None = None
    """Its power just before the first load."""
    energy_per_inference_j: float | None = None
    """Energy in the timed windows, as EnergySource read it, by the inferences in them; what it takes when idle is part of it."""
    gpu_clock_mhz: float | None = None
    """Mean clock of the GPU."""
    gpu_temperature_c: float | None = None
    """Its highest temperature."""
    gpu_throttled: str = ""
    """Why it was slowed."""
    access: str = ""
    """white: we loaded the model; gray: a local server did, whose process was seen; black: only its answers were."""
    ttft_ms_median: float | None = None
    """Time to the first token."""
    ttft_ms_p90: float | None = None
    """Empty below 44 requests."""
    itl_ms_median: float | None = None
    """Time between one token and the next."""
    tpot_ms_median: float | None = None
    """Time per output token after the first."""
    e2e_ms_median: float | None = None
    """From the request to the last token."""
    tokens_per_second: float | None = None
    """Output tokens per second over all requests."""
    output_tokens: float | None = None
    """Of all requests, as the server counts them."""
    goodput: float | None = None
    """Requests per second that met their objective."""
    rouge1: float | None = None
    """F1 of single words against the reference summaries."""
    rouge2: float | None = None
    """F1 of pairs of words."""
    rouge_l: float | None = None
    """F1 of the longest common subsequence."""
    figures: str = ""
    """What else was measured, by name with the unit in it."""
    fingerprint: str = ""
    """One hash over device, system, runtime, unit, threads, shapes, seed, steps and model: rows that share it were made alike."""
    simulated: bool | None = None
    """true: a simulation, its figures come from a script or its device only pretends to be one. Empty: neither is so."""
    variant: str = ""
    """Which form of the model this is, such as int8; its name ends in it. Empty: there is only one."""
    batch: int | None = None
    """Size of the batch that was asked for; empty: as the model has it."""
    throughput_per_s: float | None = None
    """Batch by InferenceMsMedian: inputs in a second, one inference after the other; where no batch was asked for, inferences. Empty of a
    server, which works on several at a time."""
    trust: str = ""
    """Why the submitter believed the worker when it gave it the task: own, pool NAME, listed or stranger. Empty: no worker had it."""
    output_sketch: str = ""
    """Of the outputs of the first launch: type, number of values, size and 16 signed sums of each, so that devices which round differently
    can be compared."""
    witnessed_s: float | None = None
    """Of a stranger's run: seconds from the reveal of its inputs to its result, on the scheduler's clock."""
    unexplained_percent: float | None = None
    """Of these seconds, in which by the record nothing was loaded and no inference was made."""
    inference_ms_witnessed_max: float | None = None
    """WitnessedS by the timed inferences: the most that one can have taken on average, if the worker made all that it claims."""
    canary: str = ""
    """Of a stranger's run: which launch's outputs the scheduler computed again and found right, or why it did not."""
    device_key: str = ""
    """Peer id of the key that DeviceId belongs to: WorkerId, or the first of several keys that the submitter knows as workers of that
    device. Rows are of one device only if they share DeviceId and DeviceKey."""
    preempted: int | None = None
    """How often the task gave way to a higher priority and began again from the start: nothing measured before that is in the row. Empty
    where nothing could preempt it."""
    against: str = ""
    """The model that took turns with this one, and that it is compared with. Empty: it was measured alone."""
    against_unit: str = ""
    """Where Against ran, in processes of its own. Empty: on the same unit, in the same processes."""
    compare_verdict: str = ""
    """FASTER, SLOWER, SAME or AMBIGUOUS, compared with Against."""
    compare_reason: str = ""
    """The ratios with their intervals, and what they leave open."""
    ratio: float | None = None
    """This model's wall time by that of Against: the middle of the launches, each of which has one figure."""
    ratio_low: float | None = None
    """Lower end of its interval: those of all looks, by wall and by CPU time, hold the truth together in at least 98 % of comparisons."""
    ratio_high: float | None = None
    """Upper end of Ratio's interval."""
    cpu_ratio: float | None = None
    """This model's CPU time of all threads by that of Against; empty where the system does not tell."""
    cpu_ratio_low: float | None = None
    """Lower end of CpuRatio's interval."""
    cpu_ratio_high: float | None = None
    """Upper end of CpuRatio's interval."""
    contention: bool | None = None
    """true: the two ratios differ surely, so one of the models waits more than the other. Empty: not so."""
    against_ms_median: float | None = None
    """Of Against, in the same processes: as InferenceMsMedian."""
    sustain_s: float | None = None
    """Seconds that it was to infer without a break; empty: it was measured by runs."""
    burst_ms: float | None = None
    """Of a sustained run: the median of one inference before the device became slower."""
    knee_s: float | None = None
    """Of a sustained run: seconds after which the device became at least 5 % slower and stayed so; empty: it did not."""
    steady_ms: float | None = None
    """Of a sustained run: the median of one inference in its last level; empty: it was still changing at its end."""
    slowdown_percent: float | None = None
    """By how much SteadyMs is above BurstMs."""
    recovery_s: float | None = None
    """Seconds of rest after which it was as quick as at first; empty: there was no knee, or it did not recover while it was watched."""
    burst_j: float | None = None
    """Joules of one inference before the knee, as EnergySource read them."""
    steady_j: float | None = None
    """Joules of one inference in the last level."""
    sustained: str = ""
    """What a sustained run showed, in a sentence."""
    energy_source: str = ""
    """Who read EnergyPerInferenceJ, and of which part: a meter at the wall if there is one, else the sum of GPU, package and memory, as
    many of them as were read."""
    remarks: str = ""
    """What is worth knowing of a row whose verdict stands: host busy 6% says that other work ran, and that the times do not show it."""
    sitting: int | None = None
    """Which of several sittings on one device, at different times, from 1; empty: there is only one."""
    first_sitting: str = ""
    """Of a sitting: the task of the first one of the same."""
    ended_at: str = ""
    """Of a sitting: when its result was stored, in UTC, by the scheduler's clock."""
    sittings: int | None = None
    """How many sittings are pooled in the next columns: those with times that were made alike (Fingerprint). Empty below two."""
    sittings_span_s: float | None = None
    """Seconds from the end of the first of them to the end of the last."""
    pooled_ms_median: float | None = None
    """Milliseconds of one inference on this device over its sittings: by random effects on the logs of their medians."""
    pooled_ms_median_low: float | None = None
    """Lower end of its 95 % interval (Hartung and Knapp), which holds beyond the hours of the sittings."""
    pooled_ms_median_high: float | None = None
    """Its upper end."""
    between_sittings_percent: float | None = None
    """Of the variance of the sittings' medians, what lies between sittings and not within them."""
    scores: str = ""
    """What the answers to the campaign's examples score, by metric, such as `accuracy=0.9712`. Empty: the model was not evaluated."""
    scores_why: str = ""
    """Why an evaluated model lacks scores."""
    examples_sha256: str = ""
    """Of the examples that it was given, as devices get them."""
    answers_sha256: str = ""
    """Of its answers, which stand in the record."""

    @property
    def quality(self) -> float | None:
        """Quality of the answers: accuracy, or ROUGE-L of summaries. None: neither was scored."""
        return read_scores(self.scores).get("accuracy", self.rouge_l)

    results_url: str = ""
    """Where the campaign has its results written as well once it has ended; empty: nowhere."""
    compute_type: str = ""
    """Type of the floats in which the runtime computed, such as bf16; empty: the model's own, or the runtime does not tell."""
    scored_by: str = ""
    """Packages of the metrics that scored the answers, with their versions, such as `wer_x=my-metrics 1.2`. Empty: Sark's own alone."""


CONTRACT: Final = 17
COLUMNS: Final[tuple[str, ...]] = tuple(column_name(name) for name in Row.model_fields)


def columns_page() -> str:
    """A page for people: all columns and their meanings."""
    rows = "\n".join(
        f"| {number} | `{name}` | {meaning.replace(chr(10), ' ')} |"
        for number, (name, meaning) in enumerate(column_meanings().items(), start=1)
    )
    return f"""# The columns of the CSV

The first 17 are those of Sark's predecessor, with its names and in its order. An empty cell was not measured.
A row that is not Complete carries no measured number. Written by `make spec` from `results/row/row.py`.

| # | column | says |
|---|---|---|
{rows}
"""


def column_meanings() -> dict[str, str]:
    """Each column and its meaning, for people."""
    return {column_name(name): field.description or "" for name, field in Row.model_fields.items()}
