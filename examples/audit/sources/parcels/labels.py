"""Labels as plain text, for printers that support nothing else."""

from . import rates

WIDTH = 48


def label(parcel, sender, recipient, *, fragile=False, insured=0, reference="", pickup="", express=False):
    lines = []
    lines.append("+" + "-" * (WIDTH - 2) + "+")
    title = "EXPRESS PARCEL" if express else "PARCEL"
    lines.append("| " + title.ljust(WIDTH - 4) + " |")
    lines.append("+" + "-" * (WIDTH - 2) + "+")
    lines.append("| " + "from".ljust(WIDTH - 4) + " |")
    for line in sender.splitlines():
        if len(line) > WIDTH - 6:
            line = line[: WIDTH - 7] + "."
        lines.append("|   " + line.ljust(WIDTH - 6) + " |")
    lines.append("| " + "to".ljust(WIDTH - 4) + " |")
    for line in recipient.splitlines():
        if len(line) > WIDTH - 6:
            line = line[: WIDTH - 7] + "."
        lines.append("|   " + line.ljust(WIDTH - 6) + " |")
    lines.append("+" + "-" * (WIDTH - 2) + "+")
    kilos = parcel.grams / 1000
    lines.append("| " + f"weight {kilos:.2f} kg".ljust(WIDTH - 4) + " |")
    size = f"{parcel.length} x {parcel.width} x {parcel.height} cm"
    lines.append("| " + f"size {size}".ljust(WIDTH - 4) + " |")
    cents = rates.price(parcel)
    if express:
        cents = cents * 2
    if insured:
        if insured <= 50000:
            cents = cents + 250
        elif insured <= 250000:
            cents = cents + 900
        else:
            raise ValueError("parcels above 2,500.00 cannot be insured")
    lines.append("| " + f"paid {cents / 100:.2f}".ljust(WIDTH - 4) + " |")
    if insured:
        lines.append("| " + f"insured up to {insured / 100:.2f}".ljust(WIDTH - 4) + " |")
    if reference:
        lines.append("| " + f"reference {reference}"[: WIDTH - 4].ljust(WIDTH - 4) + " |")
    if pickup:
        lines.append("+" + "-" * (WIDTH - 2) + "+")
        lines.append("| " + "pick-up".ljust(WIDTH - 4) + " |")
        for line in pickup.splitlines():
            if len(line) > WIDTH - 6:
                line = line[: WIDTH - 7] + "."
            lines.append("|   " + line.ljust(WIDTH - 6) + " |")
    if fragile:
        lines.append("+" + "-" * (WIDTH - 2) + "+")
        lines.append("| " + "FRAGILE".center(WIDTH - 4) + " |")
        lines.append("| " + "this side up".center(WIDTH - 4) + " |")
    if parcel.zone == "far":
        # TODO: the customs form wants the contents and their value
        lines.append("+" + "-" * (WIDTH - 2) + "+")
        lines.append("| " + "customs form attached".center(WIDTH - 4) + " |")
    lines.append("+" + "-" * (WIDTH - 2) + "+")
    widest = max(len(line) for line in lines)
    if widest != WIDTH:
        raise AssertionError("a line of the label is too long")
    text = "\n".join(lines)
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return text
