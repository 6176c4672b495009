"""Lists the downstream tasks: where the data of each are, its columns and its labels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A downstream task.

    Attributes:
        hub_id: data set on the Hub, used where no file is given.
        text, label: its columns; None: they are found.
        labels: names by id; of two, the second is the positive class.
    """

    hub_id: str
    text: str | None
    label: str | None
    labels: tuple[str, ...]


TASKS = {
    # Almeida & Hidalgo 2011, "Contributions to the study of SMS spam filtering"
    "spam": Task("ucirvine/sms_spam", "sms", "label", ("ham", "spam")),
}

POSITIVE_NAMES = ("spam", "1", "yes", "true", "positive", "pos")  # of the positive one of two labels, without a task


def order_labels(names: set[str], task: str | None = None) -> tuple[str, ...]:
    """Label names by id: the task's order, else sorted, with the positive one of two last."""
    if task is not None and names <= set(TASKS[task].labels):
        return TASKS[task].labels
    ordered = sorted(names)
    if len(ordered) == 2 and ordered[0].lower() in POSITIVE_NAMES:
        ordered.reverse()
    return tuple(ordered)
