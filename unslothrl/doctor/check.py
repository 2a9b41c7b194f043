"""What one check has found."""

from dataclasses import dataclass

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")  # ascending


@dataclass(frozen=True)
class Check:
    """`remedy` is what to do about it; "" where all is well."""

    name: str
    status: str
    found: str
    remedy: str = ""

    def line(self) -> str:
        return f"{self.status:<8} {self.name:<14} {self.found}" + (
            f": {self.remedy}" if self.remedy else ""
        )
