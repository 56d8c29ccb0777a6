#ifndef STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_
#define STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_

namespace stagecoach::partition {

// Rules of a receipt's page, to stand after those of its timeline (schedule/pictures/chart.h),
// whose colors and cards they use. Not part of the public interface.
extern const char kReceiptStyle[];

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_
