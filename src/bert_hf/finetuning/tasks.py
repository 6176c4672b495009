"""A table: downstream task → where its data are, what they are called, and what it is judged by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One row of the table.

    Attributes:
        hub_id: data set on the Hub, used where no file is given.
        text, label: its columns.
        labels: names by id; of two, the second is the positive class.
        best: the figure by which the best model is kept.
    """

    hub_id: str
    text: str
    label: str
    labels: tuple[str, ...]
    best: str


TASKS = {
    # Almeida & Hidalgo 2011, "Contributions to the study of SMS spam filtering"
    "spam": Task("ucirvine/sms_spam", "sms", "label", ("ham", "spam"), "f1"),
}

# Where no task is named: which of two labels is the one looked for.
POSITIVE_NAMES = ("spam", "1", "yes", "true", "positive", "pos")


def order_labels(names: set[str], task: str | None = None) -> tuple[str, ...]:
    """Label names by id: the task's order, else sorted, with the positive one of two last."""
    if task is not None and names <= set(TASKS[task].labels):
        return TASKS[task].labels
    ordered = sorted(names)
    if len(ordered) == 2 and ordered[0].lower() in POSITIVE_NAMES:
        ordered.reverse()
    return tuple(ordered)
