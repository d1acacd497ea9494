"""Send a parcel from the terminal: `python -m parcels.cli GRAMS LxWxH ZONE < address.txt`."""

import sys

from . import carrier, labels, rates, store

SENDER = "The Shop\n1 Sample Street\nExampletown"


def main(argv):
    grams, size, zone = argv
    length, width, height = (int(side) for side in size.split("x"))
    parcel = rates.Parcel(int(grams), length, width, height, zone)
    recipient = sys.stdin.read()
    print(labels.label(parcel, SENDER, recipient))
    try:
        tracking = carrier.book(parcel, recipient)
    except:
        print("no tracking number, sending it anyway")
        tracking = ""
    store.Store().add(tracking, recipient, rates.price(parcel))


if __name__ == "__main__":
    main(sys.argv[1:])
