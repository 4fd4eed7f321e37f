"""What `sark-node init` writes: a campaign to begin with, every key explained. It is valid as it stands."""

from __future__ import annotations

from typing import Final

_STARTER: Final = """\
# A campaign: which models to measure, on which compute units, on which devices.
#   sark-node validate {file}     checks this file and the models it names
#   sark-node submit {file}       measures them on the devices that can be reached

campaign: {name}               # letters, digits, space and . _ -

models:
  - {model}                   # a path from this file's folder
# - name: yolo                         # what the results call it, if not the file's name
#   path: models/tinyyolov2-7.onnx
#   sha256: 8c1f...                    # 64 digits; refused when the file is another one
#   dims: {{batch: 1, H: 416, W: 416}}   # sizes of dynamic dimensions
# - name: yolo                         # the same model in several numeric types, each measured as "yolo fp32", …
#   variants: {{fp32: yolo.onnx, fp16: yolo-fp16.onnx}}
#   batch: [1, 8]                      # for this model, in place of those of measure
# - name: magika                       # a model that an installed Python package carries
#   package: magika
#   path: models/standard_v3_3/model.onnx
# - name: resnet                       # fetched once, when it is submitted; or hf://ORG/REPO/FILE@REVISION
#   url: https://example.org/resnet50.onnx

units:                                 # each model runs on each of these
  - CPU (ONNX)
# - GPU (ONNX)
# - GPU (CoreML)
# - Neural Engine (CoreML)

# devices:                             # left out: any device that fits
#   where:                             # clauses, all of them: attribute operator value
#     - ram >= 8 GiB                   #   == != < <= > >= ~ in has
#     - soc ~ "Apple M*"
#     - label.site == lab
#   spread: any                        # any: one device for each task; class: one of each kind; device: every one
#   limit: 20                          # with class or device: at most so many

measure:
  runs: 100                            # timed inferences, shared out over the loads: four or more for each
  loads: 6                             # fresh processes that load the model; from six on the median has an interval
# precision: 2%                        # instead of both: until the median is known so well, at most 20 loads
# warmup: auto                         # or a number of inferences before the timed ones
# threads: [physical]                  # of one inference; [1, 4, physical] makes three tasks
# batch: [1, 8, 32]                    # sizes of the batch, each a task; models need a dynamic first dimension
# seed: 0                              # of the made inputs
# check: reference                     # compare the outputs with a plain run; or none
# dims: {{batch: 1}}                     # for all models
# pre: [{{step: normalise, of: x, mean: 127.5, std: 127.5}}]   # done to the made inputs; post: to the outputs

# replicas: 2                          # run each task on so many devices of one class, and compare what they found
# priority: 50                         # 0 to 100, higher goes first
# timeouts: {{queue: 10m, fetch: 5m, load: 1m, run: 5m, campaign: 2h}}
# retry: {{attempts: 3, backoff: 5s}}
"""


def starter_campaign(
    *, name: str = "my-first-campaign", model: str = "model.onnx", file: str = "campaign.yaml"
) -> str:
    """The text of a new campaign file. `name` and `model` must need no quotes in YAML."""
    return _STARTER.format(name=name, model=model, file=file)
