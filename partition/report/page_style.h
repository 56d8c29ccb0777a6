#ifndef STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_
#define STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_

namespace stagecoach::partition {

// Rules of an evaluation's page, to stand after those of its timeline (schedule/render/chart.h),
// whose colors and cards they use. Not part of the public interface.
extern const char kEvaluationStyle[];

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_REPORT_PAGE_STYLE_H_
