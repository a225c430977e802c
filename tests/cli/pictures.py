# SPDX-License-Identifier: Apache-2.0
"""Reads pictures far enough to know that they are sound: PNG completely, SVG as XML, PDF by its frame."""
import struct
import xml.etree.ElementTree
import zlib


def read_png(path):
    """Returns (width, height, rows); a row is a list of (red, green, blue). Checks every checksum."""
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, header = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0], kind
        at += 12 + length
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT":
            packed += body
    assert kind == b"IEND" and at == len(data)
    width, height, depth, colour_type, _, _, interlace = header
    assert (depth, colour_type, interlace) == (8, 2, 0), header
    raw, stride = zlib.decompress(packed), 3 * width
    assert len(raw) == height * (stride + 1)
    previous, rows = [0] * stride, []
    for y in range(height):
        kind, line = raw[y * (stride + 1)], list(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride):
            a = line[x - 3] if x >= 3 else 0
            b = previous[x]
            c = previous[x - 3] if x >= 3 else 0
            if kind == 1:
                line[x] = (line[x] + a) & 255
            elif kind == 2:
                line[x] = (line[x] + b) & 255
            elif kind == 3:
                line[x] = (line[x] + (a + b) // 2) & 255
            elif kind == 4:
                near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))
                line[x] = (line[x] + near[2]) & 255
        previous = line
        rows.append([tuple(line[i:i + 3]) for i in range(0, stride, 3)])
    return width, height, rows


def colours(rows):
    """How many pixels have each colour."""
    count = {}
    for row in rows:
        for pixel in row:
            count[pixel] = count.get(pixel, 0) + 1
    return count


def check_svg(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
    assert len(list(root.iter())) > 20


def check_pdf(path):
    data = open(path, "rb").read()
    assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF") and b"/Type /Page" in data
