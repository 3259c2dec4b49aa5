"""PDF files as the tests of the chat attach them."""

from __future__ import annotations


def make_pdf(*pages: str, encrypted: bool = False) -> bytes:
    """Return a PDF with a page for each text; `encrypted`: with a password that nobody knows."""
    numbers = range(4, 4 + 2 * len(pages), 2)
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{n} 0 R' for n in numbers)}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in zip(numbers, pages, strict=True):
        lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
        content = f"BT /F1 12 Tf 14 TL 72 720 Td {lines} ET" if text else ""
        parts.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {number + 1} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        parts.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    trailer = f"/Size {len(parts) + 1} /Root 1 0 R"
    if encrypted:
        word = f"<{'5a' * 32}>"
        way = f"/Filter /Standard /V 1 /R 2 /P -4 /O {word} /U {word}"
        trailer += f" /ID [<00> <00>] /Encrypt << {way} >>"
    out = b"%PDF-1.4\n"
    starts = []
    for number, part in enumerate(parts, 1):
        starts.append(len(out))
        out += f"{number} 0 obj\n{part}\nendobj\n".encode()
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    end = f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}"
    return out + f"{end}trailer\n<< {trailer} >>\nstartxref\n{len(out)}\n%%EOF\n".encode()
