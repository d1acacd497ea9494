"""The price of a parcel."""

from dataclasses import dataclass

ZONES = {"home": 1.0, "near": 1.6, "far": 2.9}


@dataclass
class Parcel:
    """The weight, size and zone of a parcel."""

    grams: int
    length: int
    width: int
    height: int
    zone: str = "home"


def volume_weight(parcel):
    return parcel.length * parcel.width * parcel.height / 5


def price(parcel, discount=0.0):
    """Return the price in cents."""
    # TODO: the carrier rounds up to the next 100 g, we do not
    weight = max(parcel.grams, volume_weight(parcel))
    base = 390 if weight < 2000 else 690
    return int(base * ZONES[parcel.zone] * (1 - discount))


def cheapest(parcels):
    return min(parcels, key=price)
